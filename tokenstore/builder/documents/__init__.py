"""Rows -> documents -> tokens.

hooks, convert         the user's functions; a row as text, as tokens or as a conversation
chat, templates, template_families, loss_spans   conversations, and which part of them is in the loss
collect, encode        documents in batches for the tokenizer, and their tokens
"""
