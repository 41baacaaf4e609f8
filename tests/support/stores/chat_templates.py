"""Chat templates like those of popular model families, each with what makes its family difficult. Written for these tests."""

CHATML = """\
{%- if messages[0].role != 'system' -%}
    {{- '<|im_start|>system\\nBe of help.<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages -%}
    {{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""
OWN_CHATML = "{{- '<chat>' }}" + CHATML  # as no built-in template writes

# A beginning-of-text token, contents trimmed, a date in a head message that is always there
LLAMA = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\nToday: " + date_string + "\\n\\n" + system_message + "<|eot_id|>" }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
"""

# Roles must alternate; no beginning of an answer; the end of a turn is the end-of-text token
MISTRAL = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate: user, assistant, user, ...') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}{{- '[INST] ' + message['content'] + ' [/INST]' }}
    {%- else %}{{- ' ' + message['content'] + eos_token }}{%- endif %}
{%- endfor %}
"""

# The system message goes into the last user message, wherever that is
MISTRAL_MOVES = """\
{{- bos_token }}
{%- set system = messages[0].content if messages[0].role == 'system' else '' %}
{%- set users = messages | selectattr('role', 'equalto', 'user') | list %}
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {{- '[INST] ' + (system + '\\n\\n' if system and message == users[-1] else '') + message.content + '[/INST]' }}
    {%- elif message.role == 'assistant' %}{{- ' ' + message.content + eos_token }}{%- endif %}
{%- endfor %}
"""

# Reasoning is kept after the last question only, where even an answer without any gets an empty one
QWEN = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- for tool in tools %}{{- tool | tojson + '\\n' }}{%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{%- if message.role == 'user' %}{%- set ns.last = loop.index0 %}{%- endif %}{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set reasoning = message.reasoning_content | default('') %}
        {{- '<|im_start|>assistant\\n' }}<GENERATION>
        {%- if loop.index0 > ns.last and (loop.last or reasoning) %}
            {{- '<think>\\n' + reasoning + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>' + (call.function | tojson) + '</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>' }}<ENDGENERATION>{{- '\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
QWEN_MARKED = QWEN.replace("<GENERATION>", "{%- generation -%}").replace("<ENDGENERATION>", "{%- endgeneration -%}")
QWEN = QWEN.replace("<GENERATION>", "").replace("<ENDGENERATION>", "")
OWN_QWEN = "{{- '<qwen>' }}" + QWEN  # as no built-in template writes

# Its own name for the assistant, no system messages
GEMMA = """\
{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}{{- raise_exception('no system messages') -}}{%- endif -%}
{%- for message in messages -%}
    {%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
    {{- '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<start_of_turn>model\\n' -}}{%- endif -%}
"""

# An answer is begun with a thought, but written without
DEEPSEEK = """\
{{- bos_token }}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{- '<User>' + message.content }}
    {%- else %}{{- '<Assistant>' + message.content.split('</think>')[-1] + eos_token }}{%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<Assistant><think>\\n' }}{%- endif %}
"""

# Begins an answer at every end
ALWAYS_BEGINS = """\
{%- for message in messages %}{{- '<' + message.role + '>' + message.content + '<end>' }}{%- endfor %}
{{- '<assistant>' }}
"""
