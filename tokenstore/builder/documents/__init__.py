"""Rows -> documents -> tokens.

hooks, convert         the user's functions; a row -> a document: text, tokens or a conversation
chat, templates        a conversation's messages; chat templates, and the text they write
template_families, loss_spans   which part of that text is in the loss
fields                 fields of records, as text and as metadata
collect, encode        documents in batches large enough for the tokenizer; their tokens
"""
