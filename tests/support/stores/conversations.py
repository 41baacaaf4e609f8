"""Conversations of every shape that chat templates distinguish, written for these tests."""

from tokenstore.builder.documents.chat import Conversation, read_conversation

SCHEMA = {
    "type": "function",
    "function": {
        "name": "clock",
        "description": "Gives the time of a zone.",
        "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}, "required": ["zone"]},
    },
}
CALL = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "CET", "näher": True}}}


def said(*turns: tuple[str, str], tools: list | None = None, **last: object) -> Conversation:
    """Turns as (role, content); `last` has more fields for the last message."""
    messages = [{"role": role, "content": content} for role, content in turns]
    messages[-1] |= last
    return read_conversation({"messages": messages, "tools": tools})


SYSTEM, ASKED, ANSWERED = ("system", "Sei knapp."), ("user", "Wie geht's? 🦊"), ("assistant", "Gut 👩‍👩‍👧, danke!")
AGAIN, FRIDAY = ("user", "今日は何曜日ですか"), ("assistant", "Пятница.")
CALLS = {"role": "assistant", "content": "", "tool_calls": [CALL]}

CONVERSATIONS = {
    "one turn": said(ASKED, ANSWERED),
    "two turns": said(ASKED, ANSWERED, AGAIN, FRIDAY),
    "system": said(SYSTEM, ASKED, ANSWERED, AGAIN, FRIDAY),
    "empty system": said(("system", ""), ASKED, ANSWERED),
    "white space": said(
        ("system", " a \n"), ("user", "\n b "), ("assistant", "\n\n c\n"), AGAIN, ("assistant", "  d ")
    ),
    "ends with the user": said(SYSTEM, ASKED, ANSWERED, AGAIN),
    "empty answers": said(ASKED, ("assistant", ""), AGAIN, ("assistant", "")),
    "two questions": said(ASKED, AGAIN, ANSWERED),
    "two answers": said(ASKED, ANSWERED, FRIDAY),
    "late system": said(ASKED, ANSWERED, SYSTEM, AGAIN, FRIDAY),
    "two systems": said(SYSTEM, SYSTEM, ASKED, ANSWERED),
    "begins with the assistant": said(ANSWERED, AGAIN, FRIDAY),
    "reasoning": said(ASKED, ANSWERED, AGAIN, FRIDAY, reasoning_content="\nDonnerstag war gestern.\n"),
    "reasoning, earlier": read_conversation(
        {
            "messages": [
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "4", "reasoning_content": "zwei und zwei"},
                {"role": "user", "content": "3+3?"},
                {"role": "assistant", "content": "6"},
            ]
        }
    ),
    "reasoning in the text": said(
        ASKED,
        ("assistant", "<think>\nhm\n</think>\n\nGut."),
        AGAIN,
        ("assistant", "<think>\nals\n</think>\n\nFreitag."),
    ),
    "tools": said(SYSTEM, ASKED, ANSWERED, tools=[SCHEMA, SCHEMA]),
    "tools without a system": said(ASKED, ANSWERED, tools=[SCHEMA]),
    "a call": read_conversation(
        {
            "messages": [
                {"role": "user", "content": "Uhr?"},
                CALLS,
                {"role": "tool", "content": '{"time": "15:00"}'},
                {"role": "assistant", "content": "Drei."},
            ],
            "tools": [SCHEMA],
        }
    ),
    "two calls": read_conversation(
        {
            "messages": [
                {"role": "system", "content": "Sei knapp."},
                {"role": "user", "content": "Uhr?"},
                {"role": "assistant", "content": "Moment …", "tool_calls": [CALL, CALL]},
                {"role": "tool", "content": "15:00"},
                {"role": "tool", "content": "15:01"},
                {"role": "assistant", "content": "Drei."},
                {"role": "user", "content": "Danke"},
                {"role": "assistant", "content": "Bitte."},
            ],
            "tools": [SCHEMA],
        }
    ),
    "a call as text": read_conversation(
        {
            "messages": [
                {"role": "user", "content": "Uhr?"},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [{"type": "function", "function": {"name": "clock", "arguments": '{"zone": "CET"}'}}],
                },
                {"role": "tool", "content": "15:00"},
                {"role": "assistant", "content": "Drei.", "reasoning_content": "15 - 12"},
            ]
        }
    ),
}
