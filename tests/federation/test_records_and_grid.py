from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fedloop_core.errors import UpdateRefused
from fedloop_core.federation.records import TRAIN, array_record, pack, unpack
from fedloop_simulations.grid import InProcessGrid, Node

DTYPES = st.sampled_from(["float32", "float64", "int64", "int32", "uint8"])


@given(
    body=st.binary(max_size=200),
    arrays=st.dictionaries(
        st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=8),
        DTYPES.flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))),
        max_size=4,
    ),
)
def test_what_is_packed_is_unpacked_to_the_bit_and_in_order(body: bytes, arrays: dict[str, Any]) -> None:
    got, back = unpack(pack(body, array_record(arrays)))
    assert got == body
    assert list(back) == list(arrays)
    for name, array in arrays.items():
        assert back[name].dtype == array.dtype
        assert back[name].shape == array.shape
        assert back[name].tobytes() == array.tobytes()


def raw(content: bytes, stype: str = "fedloop.raw") -> Array:
    return Array("uint8", (len(content),), stype, content)


@pytest.mark.parametrize(
    ("what", "arrays"),
    [
        ("numpy's own format, which a peer might pickle", {"x": Array(np.zeros(2, np.float32))}),
        ("another kind under a good layout", {'[["x","uint8",[8]]]': raw(bytes(8), "numpy.ndarray")}),
        ("two arrays", {'[["x","uint8",[8]]]': raw(bytes(8)), '[["y","uint8",[8]]]': raw(bytes(8))}),
        ("no layout", {"x": raw(bytes(8))}),
        ("an object dtype", {'[["x","object",[1]]]': raw(bytes(8))}),
        ("a name twice", {'[["x","uint8",[8]],["x","uint8",[8]]]': raw(bytes(16))}),
        ("fewer bytes than the shape needs", {'[["x","float32",[3]]]': raw(bytes(8))}),
        ("more bytes than the shape needs", {'[["x","float32",[1]]]': raw(bytes(16))}),
        ("negative sides", {'[["x","float32",[-1,-1]]]': raw(bytes(8))}),
        ("sides that are no numbers", {'[["x","uint8",[true]]]': raw(bytes(8))}),
        ("more sides than numpy has", {f'[["x","uint8",{[1] * 65}]]': raw(bytes(8))}),
        ("a shape beyond the address space", {'[["x","uint8",[0,1099511627776,1099511627776]]]': raw(b"")}),
    ],
)
def test_arrays_that_are_not_ours_are_refused(what: str, arrays: dict[str, Array]) -> None:
    records: dict[str, Any] = {"fedloop": ConfigRecord({"body": b""}), "arrays": ArrayRecord(arrays)}
    with pytest.raises(UpdateRefused):
        unpack(RecordDict(records))


@pytest.mark.parametrize("config", [None, ConfigRecord({"other": b""}), ConfigRecord({"body": "text"})])
def test_messages_that_are_not_ours_are_refused(config: ConfigRecord | None) -> None:
    records: dict[str, Any] = {} if config is None else {"fedloop": config}
    with pytest.raises(UpdateRefused):
        unpack(RecordDict(records))


def echo() -> ClientApp:
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        body, arrays = unpack(message.content)
        return Message(pack(body + str(context.node_config["site"]).encode(), array_record(arrays)), reply_to=message)

    return app


def test_the_grid_needs_of_flower_what_flower_still_has() -> None:
    """Fails when Flower moves one of the internals that flower_internals.py names."""
    grid = InProcessGrid({7: Node(echo(), {"site": "a"}), 8: Node(echo(), {"site": "b"})})
    arrays = {"x": np.arange(3, dtype=np.float32)}
    first, second = grid.push_messages([Message(pack(b"for ", array_record(arrays)), node, TRAIN) for node in (7, 8)])
    (reply,) = grid.pull_messages([second])
    assert unpack(reply.content)[0] == b"for b"
    assert reply.metadata.reply_to_message_id == second
    assert reply.metadata.src_node_id == 8
    (reply,) = grid.pull_messages([first])
    assert unpack(reply.content)[0] == b"for a"
    assert list(grid.pull_messages([first, second])) == []
    assert [node.node_id for node in grid.get_nodes()] == [7, 8]
