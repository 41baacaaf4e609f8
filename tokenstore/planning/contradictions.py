"""Fields of a plan that contradict each other. Each is valid by itself, so they are checked after all fields."""

from itertools import pairwise

from tokenstore.planning.plan_fields import PlanValues
from tokenstore.planning.row_fields import wrong_align, wrong_balance
from tokenstore.planning.source_config import SourceConfig


def contradictions(config: PlanValues) -> list[str]:
    """Everything that contradicts something else, in words; each names the field and what would work."""
    of_sources = (_wrong_names, _wrong_pools, _wrong_slices, _wrong_localities, _wrong_weights)
    of_plan = (_wrong_steps, _wrong_words, _wrong_rows)
    return [text for check in (*of_sources, *of_plan) for text in check(config)]


def _wrong_names(config: PlanValues) -> list[str]:
    """Names that are not valid Unicode: half of a surrogate pair cannot be encoded (ORD-1)."""
    return [
        f"sources: {name!a} is not a valid name: it contains half of a surrogate pair"
        for name in config.sources
        if any("\ud800" <= character <= "\udfff" for character in name)
    ]


def _wrong_pools(config: PlanValues) -> list[str]:
    wrong = []
    pool_of: dict[str, str] = {}
    for name, source in config.sources.items():
        if (source.path is None) == (source.pool is None):
            wrong.append(f"sources.{name}: expected either a path or a pool, found {_found(source)}")
        if source.pool is not None and not source.repeats:
            wrong.append(f"sources.{name}.pool: expected at least one source, found none")
        if source.pool is not None and source.version is not None:
            wrong.append(f"sources.{name}.version: a pool has no version; set the version of its members instead")
        if source.pool is not None and source.loss_weight is not None:
            wrong.append(f"sources.{name}.loss_weight: a pool has none; set the loss_weight of its members instead")
        if isinstance(source.pool, tuple) and len(set(source.pool)) < len(source.pool):
            wrong.append(f"sources.{name}.pool: a source is listed twice; write {{name: 2}} to repeat it")
        for each in source.repeats:
            if each not in config.sources or config.sources[each].path is None:
                wrong.append(f"sources.{name}.pool: expected names of sources with a path, found {each!r}")
            elif config.sources[each].weight is not None or config.sources[each].max_epochs is not None:
                wrong.append(f"sources.{each}: a member of a pool has no weight or max_epochs; set them on {name}")
            if pool_of.setdefault(each, name) != name:
                wrong.append(f"sources.{each}: is a member of two pools, {pool_of[each]} and {name}; keep it in one")
        if source.pool is not None and config.packing == "concat":
            wrong.append(f"sources.{name}.pool: only valid with packing best_fit or none, found packing concat")
    return wrong


def _wrong_slices(config: PlanValues) -> list[str]:
    wrong = []
    for name, source in config.sources.items():
        fields = " and ".join(source.slice_fields)
        if fields and source.pool is not None:
            wrong.append(f"sources.{name}: a pool has no {fields}; set it on its members instead")
        elif fields and config.packing == "concat":
            wrong.append(
                f"sources.{name}: {fields} selects documents, and packing concat reads whole stores; use packing"
                " best_fit or none, or build a smaller store with `tokenstore build --sample`"
            )
        if (lengths := source.documents) is not None and lengths.min_tokens > (
            lengths.max_tokens or lengths.min_tokens
        ):
            wrong.append(
                f"sources.{name}.documents: min_tokens {lengths.min_tokens} is above max_tokens {lengths.max_tokens}"
            )
    return wrong


def _wrong_localities(config: PlanValues) -> list[str]:
    """The localities that the packing or the missing shuffle of a plan contradict."""
    wrong = []
    for name, source in config.sources.items():
        if source.locality is None:
            continue
        if config.packing != "concat":
            wrong.append(
                f"sources.{name}.locality: only valid with packing concat, found packing {config.packing}, whose sequences"
                " combine documents from anywhere in the store; use packing: concat, or omit locality"
            )
        elif not config.shuffle:
            wrong.append(
                f"sources.{name}.locality: only valid with shuffle, found shuffle: false, which reads the store from its"
                " beginning to its end; omit locality"
            )
    return wrong


def _wrong_words(config: PlanValues) -> list[str]:
    wrong = []
    if config.cross_document_targets and config.packing != "concat":
        wrong.append(f"cross_document_targets: only valid with packing concat, found packing {config.packing}")
    if config.temperature is not None and any(source.weight is not None for source in config.sources.values()):
        wrong.append("temperature: cannot be combined with weights; remove the temperature or all weights")
    return wrong


def _wrong_rows(config: PlanValues) -> list[str]:
    align = wrong_align(config.align, config.packing, config.sequence_length)
    return align + wrong_balance(config.row_costs, config.sequence_length)


def _wrong_weights(config: PlanValues) -> list[str]:
    given = {name: source.weight for name, source in config.sources.items() if source.weight is not None}
    wrong = []
    if given and not any(given.values()):
        wrong.append("sources: expected at least one weight above 0, found none")
    for i, stage in enumerate(config.stages):
        if stage.weights is None:
            if stage.global_batch_size is None and stage.batch_ramp is None:
                wrong.append(f"stages[{i}]: expected weights, global_batch_size or batch_ramp, found none")
            continue
        if unknown := sorted(set(stage.weights) - set(config.drawn_sources)):
            wrong.append(
                f"stages[{i}].weights: expected names of sources ({', '.join(config.drawn_sources)}), found {unknown}"
            )
        if not any(stage.weights.values()):
            wrong.append(f"stages[{i}].weights: expected at least one weight above 0, found none")
    staged = {name for stage in config.stages for name in stage.weights or {}}
    if staged and not given:
        wrong.append("sources: have no weights although a stage sets some; give each source a weight")
    for name in config.drawn_sources:
        if given and name not in given and name not in staged:
            wrong.append(
                f"sources.{name}: has no weight although other sources have one, so it would get no sequences;"
                " give it a weight, or 0 to declare it only"
            )
    if isinstance(config.num_steps, str) and config.on_exhausted is not None:
        wrong.append(
            f"on_exhausted: not valid with num_steps {config.num_steps}, found {config.on_exhausted}; remove one of them"
        )
    return wrong


def _wrong_steps(config: PlanValues) -> list[str]:
    wrong = []
    starts = [stage.from_step for stage in config.stages]
    if starts != sorted(set(starts)):
        wrong.append(f"stages: expected from_step to increase, found {starts}")
    if any(start >= stop for start, stop in config.skip_steps):
        wrong.append("skip_steps: expected [start, stop] with start below stop")
    ranges = sorted(config.skip_steps)
    if any(a[1] > b[0] for a, b in pairwise(ranges)):
        wrong.append("skip_steps: ranges overlap; merge them")
    return wrong


def _found(source: SourceConfig) -> str:
    return "neither" if source.path is None else "both"
