"""Blocks of real models, as exporters write them, in ONNX's text.

Braces hold extents that are drawn; `N` and `T` are dimensions that may have names. What is called
`w...` becomes an initializer; integers of `ids_K` are below K.
"""

from __future__ import annotations

import random
import re

IMAGES = {
    "residual": """(float[N,{c},{s},{s}] x, float[{c},{c},3,3] w1, float[{c}] wg, float[{c}] wb,
        float[{c}] wm, float[{c}] w_variance, float[{c},{c},1,1] w2, float[{c}] wb2) => (y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        b = BatchNormalization<epsilon=0.001>(a, wg, wb, wm, w_variance)
        r = Relu(b)
        d = Conv(r, w2, wb2)
        e = Add(d, x)
        y = Relu(e) }""",
    "squeeze_excite": """(float[N,{c},{s},{s}] x, float[{c},1,3,3] w1, float[{d},{c},1,1] w2,
        float[{d}] wb2, float[{c},{d},1,1] w3, float[{c}] wb3) => (y) {
        a = Conv<group={c}, pads=[1,1,1,1]>(x, w1)
        sa = Sigmoid(a)
        b = Mul(a, sa)
        p = GlobalAveragePool(b)
        q = Conv(p, w2, wb2)
        r = Relu(q)
        t = Conv(r, w3, wb3)
        h = HardSigmoid<alpha=0.16666667, beta=0.5>(t)
        y = Mul(b, h) }""",
    "inception": """(float[N,{c},{s},{s}] x, float[{d},{c},1,1] w1, float[{c},{c},3,3] w2,
        float[{d},{c},1,1] w3, float[{k},{c2d},1,1] w4, float[{k}] wb) => (y) {
        a = Conv(x, w1)
        b = Conv<pads=[1,1,1,1]>(x, w2)
        p = AveragePool<kernel_shape=[3,3], pads=[1,1,1,1]>(x)
        q = Conv(p, w3)
        z = Concat<axis=1>(a, b, q)
        u = Relu(z)
        v = Conv(u, w4, wb)
        y = LeakyRelu<alpha=0.1>(v) }""",
    "u_shape": """(float[N,{c},{s2},{s2}] x, float[{c},{c},3,3] w1, float[{c},{c},3,3] w2,
        float[{c},{c},2,2] w3, float[{c}] wb) => (y) {
        a = Conv<pads=[1,1,1,1]>(x, w1)
        r = Relu(a)
        p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)
        b = Conv<pads=[1,1,1,1]>(p, w2)
        g = Relu(b)
        u = ConvTranspose<strides=[2,2]>(g, w3, wb)
        z = Concat<axis=1>(r, u)
        y = Sigmoid(z) }""",
    "pyramid": """(float[N,{c},{s},{s}] x, float[N,{c},{s2},{s2}] big, float[{c},{c},1,1] w1,
        float[{c},{c},1,1] w2) => (y, z) {
        scales = Constant<value_floats=[1.0,1.0,2.0,2.0]>()
        a = Conv(x, w1)
        b = Conv(big, w2)
        u = Resize<mode="nearest", coordinate_transformation_mode="asymmetric",
            nearest_mode="floor">(a, , scales)
        y = Add(u, b)
        l = Resize<mode="linear">(a, , scales)
        z = Concat<axis=1>(l, b) }""",
    "shuffle": """(float[N,{c},{s},{s}] x, float[{c},{half},1,1] w1, float[{c}] wb) => (y) {
        shape = Constant<value_ints=[0,2,{half},{s},{s}]>()
        back = Constant<value_ints=[0,{c},{s},{s}]>()
        a = Reshape(x, shape)
        b = Transpose<perm=[0,2,1,3,4]>(a)
        d = Reshape(b, back)
        e = Conv<group=2>(d, w1, wb)
        f = Relu(e)
        y = Add(f, x) }""",
    "windows": """(float[N,{c},{s2},{s2}] x, float[{c},{c}] w1, float[{c}] wb) => (y) {
        parted = Constant<value_ints=[-1,{s},2,{s},2,{c}]>()
        rows = Constant<value_ints=[-1,4,{c}]>()
        whole = Constant<value_ints=[-1,{s2},{s2},{c}]>()
        a = Transpose<perm=[0,2,3,1]>(x)
        b = Reshape(a, parted)
        d = Transpose<perm=[0,1,3,2,4,5]>(b)
        e = Reshape(d, rows)
        f = MatMul(e, w1)
        g = Add(f, wb)
        h = Softmax<axis=-1>(g)
        split = Constant<value_ints=[-1,{s},{s},2,2,{c}]>()
        i = Reshape(h, split)
        j = Transpose<perm=[0,1,3,2,4,5]>(i)
        k = Reshape(j, whole)
        y = Transpose<perm=[0,3,1,2]>(k) }""",
    "group_norm": """(float[N,{c},{s},{s}] x, float[2] w1, float[2] w2, float[{c},1,1] w3,
        float[{c},1,1] wb) => (y) {
        shape = Constant<value_ints=[0,2,-1]>()
        back = Shape(x)
        a = Reshape(x, shape)
        b = InstanceNormalization<epsilon=0.00001>(a, w1, w2)
        d = Reshape(b, back)
        e = Mul(d, w3)
        f = Add(e, wb)
        g = Sigmoid(f)
        y = Mul(f, g) }""",
    "patches": """(float[N,3,{s2},{s2}] x, float[{c},3,2,2] w1, float[{c}] wb,
        float[1,1,{c}] w_class,
        float[1,{places},{c}] w_places) => (y) {
        shape = Constant<value_ints=[0,{c},-1]>()
        a = Conv<strides=[2,2]>(x, w1, wb)
        b = Reshape(a, shape)
        d = Transpose<perm=[0,2,1]>(b)
        zero = Constant<value_ints=[0]>()
        one = Constant<value_ints=[1]>()
        sizes = Shape(d)
        first = Slice(sizes, zero, one)
        ones = Constant<value_ints=[1,1]>()
        all = Concat<axis=0>(first, ones)
        cls = Expand(w_class, all)
        e = Concat<axis=1>(cls, d)
        y = Add(e, w_places) }""",
    "split_convolutions": """(float[N,{c},{s},{s}] x, float[{d},{half},3,3] w1,
        float[{d},{half},3,3] w2) => (y) {
        axes = Constant<value_ints=[2,3]>()
        p, q = Split<axis=1, num_outputs=2>(x)
        a = Conv<pads=[1,1,1,1], strides=[2,2]>(p, w1)
        b = Conv<pads=[1,1,1,1], strides=[2,2]>(q, w2)
        z = Concat<axis=1>(a, b)
        m = ReduceMean<keepdims=1>(z, axes)
        y = Sub(z, m) }""",
    "space_to_depth": """(float[N,{c},{s2},{s2}] x, float[{d},{c4},1,1] w1) => (y) {
        from0 = Constant<value_ints=[0,0]>()
        from1 = Constant<value_ints=[0,1]>()
        from2 = Constant<value_ints=[1,0]>()
        from3 = Constant<value_ints=[1,1]>()
        ends = Constant<value_ints=[{s2},{s2}]>()
        axes = Constant<value_ints=[2,3]>()
        steps = Constant<value_ints=[2,2]>()
        a = Slice(x, from0, ends, axes, steps)
        b = Slice(x, from2, ends, axes, steps)
        d = Slice(x, from1, ends, axes, steps)
        e = Slice(x, from3, ends, axes, steps)
        z = Concat<axis=1>(a, b, d, e)
        f = Conv(z, w1)
        g = Sigmoid(f)
        y = Mul(f, g) }""",
    "quantized_convolution": """(float[N,{c},{s},{s}] x, float[{d},{c},3,3] w1,
        float[{d}] wb) => (y) {
        sx = Constant<value_float=0.03>()
        zx = Constant<value=uint8 {117}>()
        sw = Constant<value_float=0.02>()
        zw = Constant<value=int8 {0}>()
        qx = QuantizeLinear(x, sx, zx)
        dx = DequantizeLinear(qx, sx, zx)
        qw = QuantizeLinear(w1, sw, zw)
        dw = DequantizeLinear(qw, sw, zw)
        a = Conv<pads=[1,1,1,1]>(dx, dw, wb)
        r = Relu(a)
        so = Constant<value_float=0.07>()
        zo = Constant<value=uint8 {3}>()
        qy = QuantizeLinear(r, so, zo)
        y = DequantizeLinear(qy, so, zo) }""",
}

TOKENS = {
    "attention": """(float[N,T,{m}] x, float[N,1,1,T] mask, float[{m},{m}] wq, float[{m},{m}] wk,
        float[{m},{m}] wv, float[{m}] wbq, float[{m},{m}] wo) => (y) {
        heads = Constant<value_ints=[0,-1,{h},{e}]>()
        rows = Constant<value_ints=[0,-1,{m}]>()
        scale = Constant<value_float=2.5>()
        q0 = MatMul(x, wq)
        q1 = Add(q0, wbq)
        k0 = MatMul(x, wk)
        v0 = MatMul(x, wv)
        q2 = Reshape(q1, heads)
        k2 = Reshape(k0, heads)
        v2 = Reshape(v0, heads)
        q = Transpose<perm=[0,2,1,3]>(q2)
        k = Transpose<perm=[0,2,3,1]>(k2)
        v = Transpose<perm=[0,2,1,3]>(v2)
        s = MatMul(q, k)
        t = Div(s, scale)
        u = Add(t, mask)
        p = Softmax<axis=-1>(u)
        o = MatMul(p, v)
        o1 = Transpose<perm=[0,2,1,3]>(o)
        o2 = Reshape(o1, rows)
        o3 = MatMul(o2, wo)
        y = Add(o3, x) }""",
    "causal_attention": """(float[N,T,{m}] x, float[{m},{m3}] w1, float[{m3}] wb) => (y) {
        heads = Constant<value_ints=[0,-1,{h},{e}]>()
        rows = Constant<value_ints=[0,-1,{m}]>()
        scale = Constant<value_float=0.35>()
        low = Constant<value_float=-10000.0>()
        a = MatMul(x, w1)
        b = Add(a, wb)
        q0, k0, v0 = Split<axis=-1, num_outputs=3>(b)
        q1 = Reshape(q0, heads)
        k1 = Reshape(k0, heads)
        v1 = Reshape(v0, heads)
        q2 = Transpose<perm=[0,2,1,3]>(q1)
        k2 = Transpose<perm=[0,2,3,1]>(k1)
        v = Transpose<perm=[0,2,1,3]>(v1)
        q = Mul(q2, scale)
        k = Mul(k2, scale)
        s = MatMul(q, k)
        at = Constant<value_ints=[-1]>()
        shape = Shape(s)
        start = Constant<value_ints=[2]>()
        stop = Constant<value_ints=[4]>()
        plane = Slice(shape, start, stop)
        ones = ConstantOfShape<value=float[1] {1.0}>(plane)
        lower = Trilu<upper=0>(ones)
        is_seen = Cast<to=9>(lower)
        t = Where(is_seen, s, low)
        p = Softmax<axis=-1>(t)
        o = MatMul(p, v)
        o1 = Transpose<perm=[0,2,1,3]>(o)
        y = Reshape(o1, rows) }""",
    "shared_heads": """(float[N,{h},T,{e}] q, float[N,1,T,{e}] k, float[N,1,T,{e}] v,
        float[N,1,T,T] mask) => (y) {
        axes = Constant<value_ints=[-1]>()
        sizes = Shape(q)
        kk = Expand(k, sizes)
        vv = Expand(v, sizes)
        kt = Transpose<perm=[0,1,3,2]>(kk)
        s = MatMul(q, kt)
        t = Tanh(s)
        cap = Constant<value_float=3.0>()
        u = Mul(t, cap)
        w = Add(u, mask)
        top = ReduceMax<keepdims=1>(w, axes)
        d = Sub(w, top)
        ex = Exp(d)
        total = ReduceSum<keepdims=1>(ex, axes)
        p = Div(ex, total)
        y = MatMul(p, vv) }""",
    "rotary": """(float[N,{h},T,{e}] x, float[T,{e}] cosines, float[T,{e}] sines,
        float[{e},{e}] w1) => (y) {
        zero = Constant<value_ints=[0]>()
        middle = Constant<value_ints=[{half_e}]>()
        last = Constant<value_ints=[{e}]>()
        axis = Constant<value_ints=[3]>()
        a = Slice(x, zero, middle, axis)
        b = Slice(x, middle, last, axis)
        c = Neg(b)
        d = Concat<axis=-1>(c, a)
        f = Mul(x, cosines)
        g = Mul(d, sines)
        h = Add(f, g)
        y = MatMul(h, w1) }""",
    "layer_norm": """(float[N,T,{m}] x, float[N,T,{m}] z, float[{m}] wg, float[{m}] wb,
        float[{m},{k}] w1) => (y) {
        axes = Constant<value_ints=[-1]>()
        two = Constant<value_float=2.0>()
        epsilon = Constant<value_float=0.00001>()
        v = Add(x, z)
        a = ReduceMean<keepdims=1>(v, axes)
        d = Sub(v, a)
        p = Pow(d, two)
        q = ReduceMean<keepdims=1>(p, axes)
        e = Add(q, epsilon)
        r = Sqrt(e)
        n = Div(d, r)
        g = Mul(n, wg)
        b = Add(g, wb)
        y = MatMul(b, w1) }""",
    "rms_norm": """(float[N,T,{m}] x, float[{m}] wg, float[{m},{m}] w1) => (y) {
        axes = Constant<value_ints=[-1]>()
        two = Constant<value_float=2.0>()
        epsilon = Constant<value_float=0.00001>()
        p = Pow(x, two)
        q = ReduceMean<keepdims=1>(p, axes)
        e = Add(q, epsilon)
        r = Sqrt(e)
        i = Reciprocal(r)
        n = Mul(x, i)
        g = Mul(n, wg)
        a = MatMul(g, w1)
        y = Add(a, x) }""",
    "gelu": """(float[N,T,{m}] x, float[{m},{k}] w1, float[{k}] wb1, float[{k},{m}] w2,
        float[{m}] wb2)
        => (y) {
        root = Constant<value_float=1.4142135>()
        one = Constant<value_float=1.0>()
        half = Constant<value_float=0.5>()
        a = MatMul(x, w1)
        b = Add(a, wb1)
        c = Div(b, root)
        d = Erf(c)
        e = Add(d, one)
        f = Mul(b, e)
        g = Mul(f, half)
        h = MatMul(g, w2)
        i = Add(h, wb2)
        y = Add(i, x) }""",
    "gelu_by_tanh": """(float[N,T,{m}] x, float[{k},{m}] w1, float[{k}] wb1) => (y) {
        rows = Constant<value_ints=[-1,{m}]>()
        x2 = Reshape(x, rows)
        a = Gemm<transB=1>(x2, w1, wb1)
        three = Constant<value_float=3.0>()
        c0 = Constant<value_float=0.044715>()
        c1 = Constant<value_float=0.7978846>()
        one = Constant<value_float=1.0>()
        half = Constant<value_float=0.5>()
        b = Pow(a, three)
        c = Mul(b, c0)
        d = Add(a, c)
        e = Mul(d, c1)
        f = Tanh(e)
        g = Add(f, one)
        h = Mul(a, half)
        y = Mul(h, g) }""",
    "gated": """(float[N,T,{m}] x, float[{m},{k}] w1, float[{m},{k}] w2, float[{k},{m}] w3) => (y) {
        a = MatMul(x, w1)
        s = Sigmoid(a)
        g = Mul(a, s)
        b = MatMul(x, w2)
        c = Mul(g, b)
        d = MatMul(c, w3)
        y = Add(d, x) }""",
    "similarities": """(float[N,T,{m}] x, float[N,T,{m}] z) => (y, g) {
        axes = Constant<value_ints=[-1]>()
        minus = Constant<value_float=-2.0>()
        zt = Transpose<perm=[0,2,1]>(z)
        a = MatMul(x, zt)
        b = Mul(a, minus)
        xx = Mul(x, x)
        sx = ReduceSum<keepdims=1>(xx, axes)
        zz = Mul(z, z)
        sz = ReduceSum<keepdims=1>(zz, axes)
        szt = Transpose<perm=[0,2,1]>(sz)
        c = Add(b, sx)
        d = Add(c, szt)
        y = Relu(d)
        xt = Transpose<perm=[0,2,1]>(x)
        g = MatMul(x, xt) }""",
    "linear_attention": """(float[N,{h},T,{e}] q, float[N,{h},T,{e}] k,
        float[N,{h},T,{e}] v) => (y) {
        axes = Constant<value_ints=[2]>()
        last = Constant<value_ints=[-1]>()
        one = Constant<value_float=1.0>()
        eq = Elu(q)
        fq = Add(eq, one)
        ek = Elu(k)
        fk = Add(ek, one)
        kt = Transpose<perm=[0,1,3,2]>(fk)
        kv = MatMul(kt, v)
        o = MatMul(fq, kv)
        total = ReduceSum<keepdims=1>(fk, axes)
        p = Mul(fq, total)
        n = ReduceSum<keepdims=1>(p, last)
        y = Div(o, n) }""",
    "einsums": """(float[N,T,{h},{e}] q, float[N,T,{h},{e}] k, float[N,T,{h},{e}] v,
        float[{h},{e},{m}] w1)
        => (y) {
        s = Einsum<equation="bqhd,bkhd->bhqk">(q, k)
        p = Softmax<axis=-1>(s)
        o = Einsum<equation="bhqk,bkhd->bqhd">(p, v)
        y = Einsum<equation="bqhd,hdm->bqm">(o, w1) }""",
    "embeddings": """(int64[N,T] ids_9, int64[N,T] ids_2, float[9,{m}] w1, float[2,{m}] w2,
        float[{m}] wg,
        float[{m}] wb) => (y, best) {
        a = Gather(w1, ids_9)
        b = Gather(w2, ids_2)
        c = Add(a, b)
        d = LayerNormalization<axis=-1, epsilon=0.001>(c, wg, wb)
        t = Transpose<perm=[1,0]>(w1)
        y = MatMul(d, t)
        best = ArgMax<axis=-1, keepdims=0>(y) }""",
    "cache": """(float[N,{h},1,{e}] q, float[N,{h},T,{e}] past_k, float[N,{h},T,{e}] past_v,
        float[N,{h},1,{e}] new_k, float[N,{h},1,{e}] new_v) => (y, keys, values) {
        keys = Concat<axis=2>(past_k, new_k)
        values = Concat<axis=2>(past_v, new_v)
        kt = Transpose<perm=[0,1,3,2]>(keys)
        s = MatMul(q, kt)
        scale = Constant<value_float=0.5>()
        t = Mul(s, scale)
        p = Softmax<axis=-1>(t)
        o = MatMul(p, values)
        back = Constant<value_ints=[0,1,{m}]>()
        r = Transpose<perm=[0,2,1,3]>(o)
        y = Reshape(r, back) }""",
    "quantized_linear": """(float[N,T,{m}] x, int8[{m},{k}] w1, float[{k}] wb) => (y) {
        zero = Constant<value=int8 {0}>()
        sw = Constant<value_float=0.02>()
        q, s, z = DynamicQuantizeLinear(x)
        a = MatMulInteger(q, w1, z, zero)
        b = Cast<to=1>(a)
        c = Mul(s, sw)
        d = Mul(b, c)
        e = Add(d, wb)
        y = Relu(e) }""",
    "recurrent": """(float[T,N,{m}] x, float[1,{k4},{m}] w1, float[1,{k4},{k}] w2, float[1,{k8}] wb,
        float[{k},{m}] w3) => (y) {
        a, b, c = LSTM<hidden_size={k}>(x, w1, w2, wb)
        axes = Constant<value_ints=[1]>()
        d = Squeeze(a, axes)
        e = MatMul(d, w3)
        y = Add(e, x) }""",
    "normalized": """(float[N,T,{m}] x, float[{m},{k}] w1) => (y, top, at) {
        a = LpNormalization<axis=-1, p=2>(x)
        axes = Constant<value_ints=[0]>()
        n = ReduceL2<keepdims=1>(w1, axes)
        b = Div(w1, n)
        c = MatMul(a, b)
        y = LogSoftmax<axis=-1>(c)
        two = Constant<value_ints=[1]>()
        top, at = TopK<axis=-1>(c, two) }""",
    "positions": """(float[N,{h},T,{e}] q, float[N,{h},T,{e}] k, float[5,{h}] w1) => (y) {
        kt = Transpose<perm=[0,1,3,2]>(k)
        s = MatMul(q, kt)
        shape = Shape(q)
        at = Constant<value_int=2>()
        count = Gather(shape, at)
        zero = Constant<value_int=0>()
        one = Constant<value_int=1>()
        r = Range(zero, count, one)
        axis0 = Constant<value_ints=[0]>()
        axis1 = Constant<value_ints=[1]>()
        i = Unsqueeze(r, axis1)
        j = Unsqueeze(r, axis0)
        d = Sub(i, j)
        low = Constant<value_int=-2>()
        high = Constant<value_int=2>()
        b = Clip(d, low, high)
        f = Add(b, high)
        g = Gather(w1, f)
        t = Transpose<perm=[2,0,1]>(g)
        u = Add(s, t)
        later = Greater(j, i)
        lowest = Constant<value_float=-3.4e38>()
        v = Where(later, lowest, u)
        y = Softmax<axis=-1>(v) }""",
    "merged_rows": """(float[N,T,{m}] x, float[{m},{m}] w1, float[{m}] wb) => (y) {
        rows = Constant<value_ints=[-1,{m}]>()
        last = Constant<value_ints=[2]>()
        sizes = Shape(x)
        a = Reshape(x, rows)
        b = MatMul(a, w1)
        c = Add(b, wb)
        d = Reshape(c, sizes)
        e = Add(d, x)
        t = Transpose<perm=[0,2,1]>(e)
        mean = ReduceMean<keepdims=0>(t, last)
        y = MatMul(mean, w1) }""",
    "mixed_tokens": """(float[N,T,{m}] x, float[{m}] wg, float[{m}] wb, float[{m},{m}] w1,
        float[{m},{m}] w2)
        => (y) {
        a = LayerNormalization<axis=-1>(x, wg, wb)
        b = Transpose<perm=[0,2,1]>(a)
        g = MatMul(a, b)
        p = Softmax<axis=-1>(g)
        d = MatMul(p, x)
        e = MatMul(d, w1)
        f = Mul(e, e)
        h = MatMul(f, w2)
        y = Add(h, x) }""",
}
BLOCKS = IMAGES | TOKENS


def text_of(name: str, sizes: dict[str, int], dims: dict[str, int]) -> str:
    """The text of a block; dimensions that are not given keep their names."""
    text = re.sub(r"\{(\w+)\}", lambda at: str(sizes.get(at[1], at[0])), BLOCKS[name])
    bracket = re.compile(r"\[[^\]]*\]")
    known = {re.compile(rf"\b{dim}\b"): str(extent) for dim, extent in dims.items()}

    def fixed(at: re.Match[str]) -> str:
        inner = at[0]
        for dim, extent in known.items():
            inner = dim.sub(extent, inner)
        return inner

    return bracket.sub(fixed, text)


def extents(rng: random.Random) -> dict[str, int]:
    """Extents of a block, from few numbers: axes that happen to be equal hide what is confused."""
    small = rng.random() < 0.7
    pool = (2, 4, 4, 6, 8) if small else (4, 8, 12, 16, 24, 32, 48)
    heads, width = rng.choice((1, 2, 2, 3, 4)), rng.choice(pool)
    c, d, k, s = (rng.choice(pool) for _ in range(4))
    m = heads * width
    if rng.random() < 0.3:
        k = m
    return {
        "h": heads, "e": width, "m": m, "m3": 3 * m, "k": k, "k4": 4 * k, "k8": 8 * k,
        "half_e": width // 2, "c": c, "d": d, "s": s, "s2": 2 * s, "half": c // 2,
        "places": s * s + 1, "c4": 4 * c, "c2d": c + 2 * d,
    }  # fmt: skip
