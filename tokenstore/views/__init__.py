"""Layer 5: what a store, a plan or a step contains, as frozen dataclasses. A terminal, an HTML page or --json shows them.

    store_summary.summarize_store      a store on one screen; `lengths`: document lengths, from the length index
    documents.view_document            a document or a part of it, decoded token by token; `document_of_id`
    decoding.Decoder                   token ids -> text
    search_text, search_tokens         documents that contain a phrase, or a run of token ids
    plan_summary.summarize_plan        a plan up to a step: sources, stages, epochs, warnings
    plan_ranks.ranks_of_plan           how batches divide among ranks and microbatches
    plan_balance.balance_of_plan       how evenly the attention of a step divides among ranks
    plan_locality.localities_of        sources that read their store in blocks
    plan_transport.transport_of        what a plan over stores at URLs costs
    plan_epochs.steps_of_epochs        how many steps a number of epochs takes
    plan_curves.mixture_over_steps     shares and epochs of every source at points of a run
    plan_diff.compare_plans            the first step at which two plans differ, and what differs
    plan_amendment.compare_amended     the mixture, the end and the batch size before and after an amendment
    trace.trace_rows, appearances      every sequence of a step; every step in which a document appears

`--json` prints these dataclasses: their attributes are its keys.

    inspect STORE                      StoreSummary
    inspect --document, --id           {path, version, document: DocumentView, no_text: the reason, or null}
    inspect --search, --search-tokens  {path, version, found: [{document, start, stop, id, origin, text}], complete}
    plan                               {plan: PlanSummary, ranks: PlanRanks, balance: [PlanBalance], locality: [LocalityRow],
                                       transport: Transport, or null}
    plan --epochs                      {epoch_steps: [EpochSteps]}
    plan --diff, trace --diff          PlanDifference
    amend                              {amendment: PlanAmendment, plan: fields of the new plan, warnings, output}
    trace --step                       {step: TracedStep, rank, rows: [TracedRow], no_text}
    trace --document                   {source, document, appearances: [Appearance], complete}
    report                             report.StoreReport or report.PlanReport

`complete` is false if --limit ended the list. Strings are as the store holds them and may contain anything; `text.safe`
makes one safe to print. Nothing in this folder prints.
"""
