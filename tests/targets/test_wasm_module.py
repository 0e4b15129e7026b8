"""A WebAssembly module written by `save` is called from JavaScript."""

import shutil
import subprocess

import pytest

from tilewright.base.target import Target
from tilewright.codegen.build import build
from tilewright.tensor import parse

pytestmark = [pytest.mark.slow, pytest.mark.wasm]

SCRIPT = """
import {readFileSync} from 'node:fs';
import {WASI} from 'node:wasi';
const wasi = new WASI({version: 'preview1', args: [], env: {}});
const module = await WebAssembly.compile(readFileSync('scale.wasm'));
const made = await WebAssembly.instantiate(module, wasi.getImportObject());
wasi.initialize(made);
const {memory, malloc, scale, tw_last_error} = made.exports;
const n = 11, x = malloc(4 * n), y = malloc(4 * n), shape = malloc(8), args = malloc(8);
const tensors = [malloc(64), malloc(64)];
const view = () => new DataView(memory.buffer);
for (let i = 0; i < n; ++i) view().setFloat32(x + 4 * i, i, true);
view().setBigInt64(shape, BigInt(n), true);
[x, y].forEach((data, at) => {
  const t = tensors[at];  // a DLTensor with 32-bit pointers
  view().setUint32(t, data, true);
  view().setInt32(t + 4, 1, true);
  view().setInt32(t + 8, 0, true);
  view().setInt32(t + 12, 1, true);
  view().setUint8(t + 16, 2);
  view().setUint8(t + 17, 32);
  view().setUint16(t + 18, 1, true);
  view().setUint32(t + 20, shape, true);
  view().setUint32(t + 24, 0, true);
  view().setBigUint64(t + 32, 0n, true);
  view().setUint32(args + 4 * at, t, true);
});
console.log(scale(args, 2), view().getFloat32(y + 4 * (n - 1), true));
console.log(scale(args, 1));
let text = '';
for (let p = tw_last_error(), c; (c = view().getUint8(p)); ++p) text += String.fromCharCode(c);
console.log(text);
"""


def test_a_module_is_called_from_javascript(need_linker, tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed")
    need_linker(Target.parse("wasm32"))
    program = """
    func @scale(%x: f32[n], %y: f32[n]) stage flat {
      for %i in parallel 0..n {
        %y[%i] = %x[%i] * 3
      }
    }"""
    build(parse(program), "wasm32").save(tmp_path / "scale.wasm")
    (tmp_path / "main.mjs").write_text(SCRIPT)
    done = subprocess.run(
        [node, "--no-warnings", "main.mjs"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["0 30", "9", "scale: it takes 2 arguments, got 1"]
