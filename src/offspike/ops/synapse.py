"""What runs on the device (Triton) for a convolution and its neurons at once: spikes in, spikes out, nothing between.

An implicit matrix product of whole numbers, 8 bits each, summed in 32; longer weights come as several digits of 8 bits,
one product each, highest first. A program has M pixels and N channels of the
output; the rows of its matrix are these pixels at all T steps, so that a weight is read once for T steps and the
currents never leave the registers. Rows are ordered such that a thread holds all steps of its neurons (see
`_step_and_pixel`): taking them apart moves no data. Then the neurons listen, start and fire as in `scan.py`, PARTS
slices of the channels one after the other, because tables and potentials need registers too. A longer time is several
runs, which hand the potentials on.
"""

import triton
import triton.language as tl

from offspike.ops.device import step
from offspike.ops.scan import chosen

__all__ = ["conv_and_fire"]


# One kernel for images of any size and any number of runs: how they divide is of no use, how channels do is.
@triton.jit(do_not_specialize=["batch", "height", "width", "rows", "columns", "runs"])
def conv_and_fire(
    spikes, weight, scale, beside, gain, bias, phase, theta, v0, v_end, out,
    batch, height, width, channels, rows, columns, outputs, runs,
    T: tl.constexpr, SLOTS: tl.constexpr, RUN: tl.constexpr, REST: tl.constexpr, RHO: tl.constexpr,
    DIGITS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr, NAME: tl.constexpr, VARIANT: tl.constexpr,
    ITERATIONS: tl.constexpr, EPS: tl.constexpr, SHARE: tl.constexpr, FULL: tl.constexpr, POOL: tl.constexpr,
    QUADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """``spikes [T, B, H, W, C]``, ``weight [DIGITS, O, k, k, C]`` -> ``out [T, B, H', W', O]``.

    T steps are run first, in which neurons listen, or start at ``v0``; then RUN steps, ``runs`` times, and REST. SLOTS
    is the power of two that T fits in, and RUN one itself (0: T is all). Potentials stay in registers; ``v_end`` gets
    the last, ``[B, H', W', O]`` like ``v0``. Either may be None and then costs nothing. FULL: N divides O, K divides C.
    POOL: four pixels in turn are a window of 2x2, whose spikes are counted. QUADS: spikes are bytes, channels come in
    fours.
    """
    tiles, pixels = (outputs + N - 1) // N, batch * rows * columns
    here = tl.program_id(0) // tiles * M  # programs that follow each other share pixels, which stay in the cache
    start = tl.program_id(0) % tiles * N
    # 64 bits: there may be more than 2³¹ elements.
    size, image = tl.full((), 1, tl.int64) * pixels * outputs, tl.full((), 1, tl.int64) * batch * height * width
    v = None
    if v0 is not None:
        v = _start(v0, here, start, pixels, rows, columns, outputs, POOL, M, N, PARTS)
    v = _run(
        spikes, weight, scale, beside, gain, bias, phase, theta, v, out, here, start, size,
        batch, height, width, channels, rows, columns, outputs,
        T, SLOTS, RHO, DIGITS, KERNEL, STRIDE, NAME, VARIANT, ITERATIONS, EPS, SHARE, FULL, POOL, QUADS, M, N, K,
        PARTS,
    )  # fmt: skip
    if RUN:
        spikes, out = spikes + T * image * channels, out + T * (size // 4 if POOL else size)
        if beside is not None:
            beside += T * size
        for _ in range(runs):
            v = _run(
                spikes, weight, scale, beside, gain, bias, phase, theta, v, out, here, start, size,
                batch, height, width, channels, rows, columns, outputs,
                RUN, RUN, RHO, DIGITS, KERNEL, STRIDE, NAME, VARIANT, ITERATIONS, EPS, SHARE, FULL, POOL, QUADS, M, N,
                K, PARTS,
            )  # fmt: skip
            spikes, out = spikes + RUN * image * channels, out + RUN * (size // 4 if POOL else size)
            if beside is not None:
                beside += RUN * size
    if REST:
        v = _run(
            spikes, weight, scale, beside, gain, bias, phase, theta, v, out, here, start, size,
            batch, height, width, channels, rows, columns, outputs,
            REST, RUN, RHO, DIGITS, KERNEL, STRIDE, NAME, VARIANT, ITERATIONS, EPS, SHARE, FULL, POOL, QUADS, M, N,
            K, PARTS,
        )  # fmt: skip
    if v_end is not None:
        for part in tl.static_range(PARTS):
            at, _, inside = _neurons(here, start, part, pixels, rows, columns, outputs, POOL, M, N, PARTS)
            tl.store(v_end + at, v[part], mask=inside)


@triton.jit
def _run(
    spikes, weight, scale, beside, gain, bias, phase, theta, v, out, here, start, size,
    batch, height, width, channels, rows, columns, outputs,
    T: tl.constexpr, SLOTS: tl.constexpr, RHO: tl.constexpr, DIGITS: tl.constexpr, KERNEL: tl.constexpr,
    STRIDE: tl.constexpr, NAME: tl.constexpr, VARIANT: tl.constexpr, ITERATIONS: tl.constexpr, EPS: tl.constexpr,
    SHARE: tl.constexpr, FULL: tl.constexpr, POOL: tl.constexpr, QUADS: tl.constexpr, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """T <= 8 steps, from the potentials v (PARTS of them, None: listen first), and the potentials after them."""
    pixels, each = batch * rows * columns, tl.load(theta)
    sums = _product(
        spikes, weight, here, start, batch, height, width, channels, rows, columns, outputs,
        T, SLOTS, DIGITS, KERNEL, STRIDE, FULL, POOL, M, N, K,
    )  # fmt: skip
    pieces = _apart(sums, SLOTS, M, N, PARTS)
    # Of all channels at once: the compiler takes long over each read in a kernel of this size.
    units = _lanes(scale, start, outputs, N, PARTS)
    if bias is not None:
        shifts = _lanes(bias, start, outputs, N, PARTS)
    if v is None and phase is not None:
        _, own, exists = _neurons(here, start, 0, pixels, rows, columns, outputs, POOL, M, N, 1)
        phases = _apart(tl.load(phase + own, mask=exists, other=0.0), 1, M, N, PARTS)
    codes: tl.tuple = ()
    after: tl.tuple = ()
    for part in tl.static_range(PARTS):
        at, _, inside = _neurons(here, start, part, pixels, rows, columns, outputs, POOL, M, N, PARTS)
        shift = None
        if bias is not None:
            shift = shifts[part]
        held: tl.tuple = ()
        for t in tl.static_range(T):
            held += (_current(pieces[t * PARTS + part], units[part], beside, gain, shift, at + t * size, inside),)
        if v is not None:
            first = v[part]
        else:
            u = None
            if phase is not None:
                u = phases[part]
            first = chosen(
                held, None, None, None, None, inside, each, 0, u, NAME, VARIANT, RHO, ITERATIONS, EPS, SHARE, RHO, False
            )  # fmt: skip
        code, last = _fired(held, each, first, T, 3 if POOL else 1)
        codes += (code,)
        after += (last,)
    _write(_together(codes, M, N, PARTS), out, here, start, pixels, outputs, size, T, POOL, QUADS, M, N)
    return after


@triton.jit
def _neurons(
    here, start, part, pixels, rows, columns, outputs,
    POOL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Where a slice of the neurons lies in one step of all samples, and in one sample; which exist."""
    pixel, o = here + tl.arange(0, M), start + part * (N // PARTS) + tl.arange(0, N // PARTS)
    exists = (pixel < pixels)[:, None] & (o < outputs)[None, :]
    if POOL:
        sample, y, x = _place(pixel, rows, columns, POOL)
        near, pixel = y * columns + x, sample.to(tl.int64) * rows * columns + y * columns + x
    else:
        near = (pixel.to(tl.uint32) % (rows * columns).to(tl.uint32)).to(tl.int32)
    return pixel.to(tl.int64)[:, None] * outputs + o[None, :], near[:, None] * outputs + o[None, :], exists


@triton.jit
def _lanes(values, start, outputs, N: tl.constexpr, PARTS: tl.constexpr):
    """One value for each channel, slice by slice, ``[1, N / PARTS]``."""
    o = start + tl.arange(0, N)
    return _apart(tl.load(values + o, mask=o < outputs, other=0.0)[None, :], 1, 1, N, PARTS)


@triton.jit
def _start(
    v0, here, start, pixels, rows, columns, outputs,
    POOL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """The potentials that are given, slice by slice."""
    v: tl.tuple = ()
    for part in tl.static_range(PARTS):
        at, _, inside = _neurons(here, start, part, pixels, rows, columns, outputs, POOL, M, N, PARTS)
        v += (tl.load(v0 + at, mask=inside, other=0.0),)
    return v


@triton.jit
def _product(
    spikes, weight, here, start, batch, height, width, channels, rows, columns, outputs,
    T: tl.constexpr, SLOTS: tl.constexpr, DIGITS: tl.constexpr, KERNEL: tl.constexpr, STRIDE: tl.constexpr,
    FULL: tl.constexpr, POOL: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """The sums ``[SLOTS·M, N]``: digit by digit, tap by tap, K channels at a time."""
    t, pixel = _step_and_pixel(SLOTS, M)
    sample, y, x = _place(here + pixel, rows, columns, POOL)
    y, x = y * STRIDE - KERNEL // 2, x * STRIDE - KERNEL // 2
    # What lies outside of the image is never read.
    first_row = (t * batch + sample).to(tl.int64) * height + y
    y = tl.where((sample < batch) & (t < T), y, -KERNEL)  # a row that is outside at any tap
    tall, wide = height.to(tl.uint32), width.to(tl.uint32)
    o, c = start + tl.arange(0, N), tl.arange(0, K)
    spikes += ((first_row * width + x) * channels)[:, None] + c[None, :]
    weight += (o * (KERNEL * KERNEL * channels))[None, :] + c[:, None]
    sums = tl.full((SLOTS * M, N), 0, tl.int32)
    taps: tl.constexpr = KERNEL * KERNEL
    for digit in tl.static_range(DIGITS):
        if digit > 0:
            sums = sums * 256  # what overflows comes back: the last sum fits 32 bits
            weight += outputs * (KERNEL * KERNEL * channels)
        for k in range(taps * ((channels + K - 1) // K)):
            first, tap = k // taps * K, k % taps
            dy, dx = tap // KERNEL, tap % KERNEL
            # Numbers below 0 are large ones without a sign.
            inside = (((y + dy).to(tl.uint32) < tall) & ((x + dx).to(tl.uint32) < wide))[:, None]
            if FULL:
                w = tl.load(weight + (tap * channels + first))
            else:
                inside = inside & (c < channels - first)[None, :]
                known = (c < channels - first)[:, None] & (o < outputs)[None, :]
                w = tl.load(weight + (tap * channels + first), mask=known, other=0)
            s = tl.load(spikes + ((dy * width + dx) * channels + first), mask=inside, other=0)
            sums = tl.dot(s, w, sums, out_dtype=tl.int32)
    return sums


@triton.jit
def _place(pixel, rows, columns, POOL: tl.constexpr):
    """Sample, row and column of an output."""
    pixel, rows, columns = pixel.to(tl.uint32), rows.to(tl.uint32), columns.to(tl.uint32)  # divided faster
    if POOL:
        window, member = pixel // 4, pixel % 4
        row, pair = window // (columns // 2), window % (columns // 2)
        sample, y, x = row // (rows // 2), row % (rows // 2) * 2 + member // 2, pair * 2 + member % 2
    else:
        row = pixel // columns
        sample, y, x = row // rows, row % rows, pixel % columns
    return sample.to(tl.int32), y.to(tl.int32), x.to(tl.int32)


@triton.jit
def _step_and_pixel(SLOTS: tl.constexpr, M: tl.constexpr):
    """Which step and which of M pixels each row of the matrix is.

    A warp's rows are 16, a thread's 2, which lie 8 apart; with 8 rows a warp for M, these two are steps t and t + 1
    of a pixel (t even), and the other steps follow M·2 rows further on.
    """
    r = tl.arange(0, SLOTS * M)
    t, pixel = r // M, r % M
    if SLOTS > 1:
        t, pixel = r // (2 * M) * 2 + r // 8 % 2, r % (2 * M) // 16 * 8 + r % 8
    return t, pixel


@triton.jit
def _apart(sums, SLOTS: tl.constexpr, M: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr):
    """The sums as pieces ``[M, N / PARTS]``: step by step, PARTS of each from the left."""
    pieces: tl.tuple = (sums,)
    if SLOTS > 1:
        even, odd = tl.split(tl.permute(tl.reshape(sums, (SLOTS * M // 16, 2, 8, N)), (0, 2, 3, 1)))
        pieces = (tl.reshape(even, (SLOTS * M // 2, N)), tl.reshape(odd, (SLOTS * M // 2, N)))
    if SLOTS > 2:
        pieces = _halved(pieces, SLOTS // 2 * M, N, True, 2)
    if SLOTS > 4:
        pieces = _halved(pieces, SLOTS // 4 * M, N, True, 4)
    ordered: tl.tuple = ()
    for t in tl.static_range(SLOTS):
        ordered += (pieces[t % 2 * (SLOTS // 2) + t // 2],)
    pieces = ordered
    if PARTS > 1:
        pieces = _halved(pieces, M, N, False, SLOTS)
    if PARTS > 2:
        pieces = _halved(pieces, M, N // 2, False, SLOTS * 2)
    if PARTS > 4:
        pieces = _halved(pieces, M, N // 4, False, SLOTS * 4)
    if PARTS > 8:
        pieces = _halved(pieces, M, N // 8, False, SLOTS * 8)
    return pieces


@triton.jit
def _halved(pieces, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ACROSS: tl.constexpr, COUNT: tl.constexpr):
    """Each piece in two: upper and lower half (ACROSS), or left and right one."""
    finer: tl.tuple = ()
    for i in tl.static_range(COUNT):
        if ACROSS:
            first, second = tl.split(tl.permute(tl.reshape(pieces[i], (2, ROWS // 2, COLUMNS)), (1, 2, 0)))
        else:
            first, second = tl.split(tl.permute(tl.reshape(pieces[i], (ROWS, 2, COLUMNS // 2)), (0, 2, 1)))
        finer += (first, second)
    return finer


@triton.jit
def _current(total, unit, beside, gain, shift, at, inside):
    """``unit·sum + gain·beside + shift``, float32. A unit is a power of two: multiplying with it rounds nothing."""
    whole = total.to(tl.float32)
    if beside is not None:
        i = tl.fma(whole, unit, tl.load(beside + at, mask=inside, other=0.0).to(tl.float32) * tl.load(gain))
        if shift is not None:
            i = i + shift
    elif shift is not None:
        i = tl.fma(whole, unit, shift)
    else:
        i = whole * unit
    return i


@triton.jit
def _fired(held, theta, v, T: tl.constexpr, BITS: tl.constexpr):
    """All spikes of a neuron as one number, BITS for each step; v(T).

    As a float32, which holds 24 bits, it is added to twice as fast.
    """
    code = tl.full(v.shape, 0.0, tl.float32)
    for t in tl.static_range(T):
        s, v = step(held[t], theta, v)
        code = tl.where(s, code + (1 << (t * BITS)), code)
    return code, v


@triton.jit
def _together(codes, M: tl.constexpr, N: tl.constexpr, PARTS: tl.constexpr):
    """The slices of the channels side by side again, ``[M, N]``: whole rows are written faster."""
    if PARTS > 8:
        codes = _joined(codes, M, N // 8, 8)
    if PARTS > 4:
        codes = _joined(codes, M, N // 4, 4)
    if PARTS > 2:
        codes = _joined(codes, M, N // 2, 2)
    if PARTS > 1:
        codes = _joined(codes, M, N, 1)
    return codes[0]


@triton.jit
def _joined(pieces, M: tl.constexpr, N: tl.constexpr, COUNT: tl.constexpr):
    wider: tl.tuple = ()
    for i in tl.static_range(COUNT):
        wider += (tl.reshape(tl.permute(tl.join(pieces[2 * i], pieces[2 * i + 1]), (0, 2, 1)), (M, N)),)
    return wider


@triton.jit
def _write(
    code, out, here, start, pixels, outputs, size, T: tl.constexpr, POOL: tl.constexpr, QUADS: tl.constexpr,
    M: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """Spikes, or how many there are in each window; with QUADS four channels at a time."""
    if POOL:
        for _ in tl.static_range(2):  # all steps at once: 3 bits hold a count
            first, second = tl.split(tl.permute(tl.reshape(code, (code.shape[0] // 2, 2, N)), (0, 2, 1)))
            code = first + second
        here, pixels, size = here // 4, pixels // 4, size // 4
    bits = code.to(tl.int32)
    if QUADS:
        bits = _side_by_side(_side_by_side(bits, 8), 16)
        out, start, outputs, size = out.to(tl.pointer_type(tl.int32), bitcast=True), start // 4, outputs // 4, size // 4
    pixel, o = here + tl.arange(0, bits.shape[0]), start + tl.arange(0, bits.shape[1])
    inside = (pixel < pixels)[:, None] & (o < outputs)[None, :]
    out += pixel.to(tl.int64)[:, None] * outputs + o[None, :]
    own: tl.constexpr = 3 if POOL else 1  # bits of a step
    mask: tl.constexpr = 0x01010101 if QUADS else (1 << own) - 1
    for t in tl.static_range(T):
        count = bits >> own * t & mask
        tl.store(out + t * size, count.to(out.dtype.element_ty), mask=inside)


@triton.jit
def _side_by_side(bits, WIDTH: tl.constexpr):
    """Two neighbours in one number, WIDTH bits for the left one."""
    left, right = tl.split(tl.reshape(bits, (bits.shape[0], bits.shape[1] // 2, 2)))
    return left | right << WIDTH
