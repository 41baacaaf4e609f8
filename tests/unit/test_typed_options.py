"""Options that are stated twice, once for type checkers: both say the same."""

import dataclasses
import inspect

import pytest

from tokenstore.planning.config import PlanConfig
from tokenstore.planning.locality import LocalityConfig, LocalityFields
from tokenstore.planning.plan import Plan
from tokenstore.planning.plan_fields import PlanFields, RunFields
from tokenstore.planning.row_fields import BalanceConfig, BalanceFields
from tokenstore.planning.source_config import SourceConfig, SourceFields
from tokenstore.planning.stage_config import StageConfig, StageFields
from tokenstore.torch_data.dataset import TokenDataset
from tokenstore.torch_data.formats import FORMATS, DictFormat, TupleFormat
from tokenstore.torch_data.loader import TokenLoader
from tokenstore.torch_data.options import LoaderOptions, SharedOptions


@pytest.mark.parametrize(("made", "options"), [(TokenLoader, LoaderOptions), (TokenDataset, SharedOptions)])
def test_typed_options_are_those_of_the_function(made: type, options: type) -> None:
    """Every keyword of a loader or dataset is typed, and none is typed that it does not take."""
    taken = inspect.signature(made).parameters.keys() - {"plan", "format", "fields"}
    assert options.__annotations__.keys() == taken


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        (PlanFields, PlanConfig),
        (SourceFields, SourceConfig),
        (StageFields, StageConfig),
        (BalanceFields, BalanceConfig),
        (LocalityFields, LocalityConfig),
    ],
)
def test_typed_fields_are_those_of_the_model(fields: type, model: type) -> None:
    """Every field of a plan is typed, and which are required."""
    assert fields.__annotations__.keys() == {field.name for field in dataclasses.fields(model)}
    assert fields.__required_keys__ == {
        field.name for field in dataclasses.fields(model) if field.default is dataclasses.MISSING
    }


def test_the_short_form_of_a_plan_types_all_fields() -> None:
    """Plan.of takes every field of PlanConfig but the sources: by name, or among those typed."""
    named = inspect.signature(Plan.of).parameters.keys() - {"stores", "weights", "allow_links", "remote", "fields"}
    assert named | RunFields.__annotations__.keys() == {field.name for field in dataclasses.fields(PlanConfig)} - {
        "sources"
    }


def test_typed_formats_are_all_formats() -> None:
    """Every format of a batch is a dict or a tuple for a type checker."""
    assert {*DictFormat.__args__, *TupleFormat.__args__} == FORMATS.keys()
