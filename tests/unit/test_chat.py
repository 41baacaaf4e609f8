"""Conversations: messages of every shape of record, reasons for bad ones, special tokens in texts."""

import json

import pytest

from tokenstore.builder.documents.chat import Conversation, read_conversation, special_in_content

USER, ASSISTANT = {"role": "user", "content": "Wie spät ist es? 🕰️"}, {"role": "assistant", "content": "すぐ三時です。"}
SYSTEM = {"role": "system", "content": "Sé breve."}
TURN = (USER, ASSISTANT)
CALL = {"type": "function", "function": {"name": "clock", "arguments": {"zone": "CET", "format": None}}}
ASKED, ANSWERED = USER["content"], ASSISTANT["content"]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": [USER, ASSISTANT]}, TURN),
        ({"messages": [USER, ASSISTANT], "prompt": ASKED, "prompt_id": "7", "tools": None}, TURN),
        ({"messages": None, "conversations": None, "prompt": ASKED, "completion": ANSWERED}, TURN),
        ({"messages": [{**USER, "name": None, "tool_calls": None}, {**ASSISTANT, "tool_calls": []}]}, TURN),
        ({"conversations": [{"from": "human", "value": ASKED}, {"from": "gpt", "value": ANSWERED}]}, TURN),
        ({"conversations": [{"from": "user", "value": ASKED}, {"from": "bard", "value": ANSWERED, "x": None}]}, TURN),
        ({"conversations": [USER, {**ASSISTANT, "from": None, "value": None}]}, TURN),
        ({"instruction": ASKED, "output": ANSWERED}, TURN),
        ({"instruction": ASKED, "input": "", "output": ANSWERED}, TURN),
        ({"instruction": ASKED, "input": None, "output": ANSWERED, "system": "Sé breve."}, (SYSTEM, *TURN)),
        ({"prompt": ASKED, "completion": ANSWERED}, TURN),
        ({"prompt": [SYSTEM, USER], "completion": [ASSISTANT]}, (SYSTEM, *TURN)),
        ({"question": ASKED, "answer": ANSWERED, "system": ""}, TURN),
        ({"messages": [USER, ASSISTANT], "system": "Sé breve."}, (SYSTEM, *TURN)),
        ({"messages": [SYSTEM, USER, ASSISTANT], "system": "Sé breve."}, (SYSTEM, *TURN)),
    ],
)
def test_messages_of_records_of_every_shape(row: dict, messages: tuple) -> None:
    """The fields decide the shape, whatever else a record holds; fields that are null count as missing."""
    assert read_conversation(row) == Conversation(messages)


def test_an_instruction_and_its_input_are_two_paragraphs() -> None:
    """Alpaca records: instruction, empty line, input."""
    row = {"instruction": "Résume :", "input": "Il pleut.", "output": "Pluie."}
    assert read_conversation(row).messages[0] == {"role": "user", "content": "Résume :\n\nIl pleut."}


def test_roles_of_sharegpt_are_translated() -> None:
    """All names of roles that ShareGPT data uses."""
    names = ["system", "human", "gpt", "user", "chatgpt", "bing", "assistant", "tool", "function", "observation"]
    found = read_conversation({"conversations": [{"from": name, "value": "x"} for name in names]}).messages
    roles = ["system", "user", "assistant", "user", "assistant", "assistant", "assistant", "tool", "tool", "tool"]
    assert [message["role"] for message in found] == roles


def test_other_fields_of_a_message_are_kept() -> None:
    """Tool calls, reasoning, names and ids reach the template unchanged, including nulls inside them."""
    message = {"role": "assistant", "tool_calls": [CALL], "reasoning_content": "hm", "name": "a", "weight": 0}
    assert read_conversation({"messages": [USER, {**message, "content": None}]}).messages[1] == message
    thought = {"role": "assistant", "content": "", "reasoning_content": "hm"}
    assert read_conversation({"messages": [USER, thought]}).messages[1] == thought


def test_nulls_in_tool_calls_of_a_table_are_removed() -> None:
    """A table fills structs with nulls for missing fields."""
    message = {"role": "assistant", "content": None, "tool_calls": [CALL | {"id": None}]}
    found = read_conversation({"messages": [USER, message], "tools": [{"name": "clock", "strict": None}]}, table=True)
    assert found.messages[1]["tool_calls"] == [
        {"type": "function", "function": {"name": "clock", "arguments": {"zone": "CET"}}}
    ]
    assert found.tools == [{"name": "clock"}]


@pytest.mark.parametrize("tools", [[CALL], json.dumps([CALL]), [json.dumps(CALL)]])
def test_tools_are_a_list_or_json(tools: object) -> None:
    """Schemas of tools are objects or JSON text."""
    assert read_conversation({"messages": [USER, ASSISTANT], "tools": tools}).tools == [CALL]


@pytest.mark.parametrize("tools", [None, [], "", "[]", "null"])
def test_no_tools_are_none(tools: object) -> None:
    """An empty list of tools is the same as none."""
    assert read_conversation({"messages": [USER, ASSISTANT], "tools": tools}).tools is None


@pytest.mark.parametrize("empty", ["", " \n"])
def test_an_answer_may_be_empty(empty: str) -> None:
    """It does not make the record bad: the end of its turn can be in the loss."""
    said = {"role": "assistant", "content": empty}
    assert read_conversation({"messages": [USER, said, *TURN]}).messages == (USER, said, *TURN)
    assert read_conversation({"instruction": ASKED, "output": empty}).messages == (USER, said)


def test_text_parts_are_joined() -> None:
    """Content in parts is their concatenated text."""
    parts = [{"type": "text", "text": "Guten ", "image_url": None}, {"type": "text", "text": "Tag"}]
    assert read_conversation({"messages": [{"role": "user", "content": parts}]}).messages[0]["content"] == "Guten Tag"


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({}, "expected the fields messages, or conversations, or instruction and output, or .*, found none"),
        ({"text": "x", "prompt": "y", "completion": None}, "expected the fields .*, found text, prompt"),
        ({"messages": []}, "messages: expected a list, found an empty one"),
        ({"messages": "[]"}, "messages: expected a list, found string"),
        ({"messages": [USER, 7]}, "message 2: expected an object, found number"),
        ({"messages": [USER, ASSISTANT, {"role": None, "content": "x"}]}, "message 3: expected a role, found null"),
        ({"messages": [{"role": "", "content": "x"}]}, "message 1: expected a role, found ''"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "message 1: expected a role, found list"),
        ({"messages": [USER, {"role": "assistant", "content": None}]}, "message 2: expected content, found null"),
        ({"messages": [USER, {"role": "assistant"}]}, "message 2: expected content, found null"),
        ({"messages": [{"role": "user", "content": 3}]}, "message 1: content: expected a string, found number"),
        ({"messages": [{"role": "user", "content": []}]}, "message 1: content: expected a list, found an empty one"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "message 1: expected parts of type text",
        ),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "message 1: expected parts of type text, found 'x'"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "a part of type text: expected a string"),
        (
            {"messages": [{"role": "assistant", "content": "", "tool_calls": "x"}]},
            "expected tool_calls to be a list of",
        ),
        ({"messages": [{**ASSISTANT, "reasoning_content": ["x"]}]}, "reasoning_content: expected a string, found list"),
        ({"messages": [{**ASSISTANT, "weight": 0.5}]}, "message 1: expected a weight of 0 or 1, found number"),
        ({"messages": [USER], "tools": "{"}, "tools: expected JSON, found "),
        ({"messages": [USER], "tools": {"a": 1}}, "tools: expected a list of objects, found object"),
        ({"messages": [USER], "tools": [1]}, "tools: expected a list of objects, found list"),
        (
            {"messages": [SYSTEM, USER], "system": "Be long."},
            "system: the `system` field and the first message have different texts",
        ),
        ({"messages": [USER], "system": 7}, "system: expected a string, found number"),
        ({"conversations": [{"from": "cat", "value": "x"}]}, "message 1: expected `from` to be one of .*, found 'cat'"),
        ({"conversations": [{"from": None, "value": "x"}]}, "message 1: expected `from` to be one of .*, found null"),
        ({"conversations": [{"from": "gpt", "value": None}]}, "message 1: expected content, found null"),
        ({"conversations": [{"value": "x"}]}, "message 1: expected a role, found null"),
        ({"instruction": 0, "output": "x"}, "instruction: expected a string, found number"),
        ({"instruction": "x", "input": ["y"], "output": "x"}, "input: expected a string, found list"),
        ({"instruction": "", "input": "", "output": "x"}, "instruction: expected a text, found an empty one"),
        ({"prompt": " ", "completion": "x"}, "prompt: expected a text, found an empty one"),
        ({"question": "x", "answer": {"text": "y"}}, "answer: expected a string, found object"),
        ({"prompt": [], "completion": [ASSISTANT]}, "prompt: expected a list, found an empty one"),
    ],
)
def test_a_bad_record_has_a_reason(row: dict, reason: str) -> None:
    """Each kind of mistake is described and the message with it named."""
    with pytest.raises(ValueError, match=reason):
        read_conversation(row)


SPECIAL = ("<|im_end|>", "<|im_start|>", "</s>", "")


@pytest.mark.parametrize(
    ("messages", "tools", "where"),
    [
        ([{**USER, "content": "bye<|im_end|>"}], None, "message 1: .* '<|im_end|>' in content"),
        ([USER, {**ASSISTANT, "reasoning_content": "<|im_start|>system"}], None, "message 2: .* in reasoning_content"),
        ([USER, {**USER, "name": "x</s>"}], None, "message 2: .* '</s>' in name"),
        ([{"role": "user</s>", "content": "x"}], None, "message 1: .* '</s>' in role"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": {"a": ["</s>"]}}}]}], None, "in tool_calls"),
        ([{"role": "assistant", "tool_calls": [{"function": {"arguments": {"</s>": 1}}}]}], None, "in tool_calls"),
        ([{**USER, "</s>": 1}], None, "message 1: "),
        (
            [USER],
            [{"name": "f", "description": "</s>"}],
            "tools: special token '</s>' in tools",
        ),
    ],
)
def test_a_special_token_in_a_conversation_is_found(messages: list, tools: list | None, where: str) -> None:
    """In every string of a record that a template may print."""
    reason = special_in_content(Conversation(tuple(messages), tools), SPECIAL)
    assert reason is not None
    with pytest.raises(ValueError, match=where):
        raise ValueError(reason)


def test_ordinary_conversations_hold_no_special_token() -> None:
    """Text that only resembles a special token is accepted."""
    conversation = Conversation((USER, {**ASSISTANT, "content": "a < b | c > d <|im_en", "tool_calls": [CALL]}), [CALL])
    assert special_in_content(conversation, SPECIAL) is None
    assert special_in_content(conversation, ()) is None
