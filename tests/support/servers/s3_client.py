"""How a client of S3 reaches a server of the tests."""

ACCESS_KEY, SECRET_KEY = "test-access-key", "test-secret-key"


def client_environment(url: str) -> dict[str, str]:
    """The environment variables with which a client of S3 uses the server at `url`."""
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_ALLOW_HTTP": "true",
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
    }
