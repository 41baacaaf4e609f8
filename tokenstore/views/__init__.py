"""Layer 5: what a store, a plan and a step are, as frozen dataclasses for whoever shows them: a terminal, a page, --json.

    store_summary.summarize_store      a store in one screen; `lengths`: its documents' lengths, from the length index
    documents.view_document            a document or a part of it, decoded token by token; `document_of_id`
    search_text, search_tokens         documents that hold a phrase, or tokens one after the other
    plan_summary.summarize_plan        a plan up to a step: sources, stages, epochs, warnings; `plan_split`: who is given what
    plan_epochs.steps_of_epochs        how many steps N epochs of a source are
    plan_curves.mixture_over_steps     shares and epochs of every source at points of a run
    plan_diff.compare_plans            from which step on two plans differ, and in what
    trace.trace_rows, appearances      every sequence of a step; every step a document comes by in

`asdict` of these dataclasses is what `--json` prints: their attributes are its keys, which stay.

    inspect STORE                      StoreSummary
    inspect --document, --id           {path, version, document: DocumentView, no_text: why there is none, or null}
    inspect --search, --search-tokens  {path, version, found: [{document, start, stop, id, origin, text}], complete}
    plan                               {plan: PlanSummary, split: PlanSplit}
    plan --epochs                      {epoch_steps: [EpochSteps]}
    plan --diff, trace --diff          PlanDifference
    trace --step                       {step: TracedStep, rank, rows: [TracedRow], no_text}
    trace --document                   {source, document, appearances: [Appearance], complete}
    report                             report.StoreReport or report.PlanReport

`complete` says that --limit left nothing out. Text in them is as the
store has it and may hold anything: `text.safe` makes it fit to be shown on a terminal. Nothing here prints.
"""
