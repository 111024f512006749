/* concat, slice and pad on CUDA: a thread moves an element, or 16 bytes if lengths and offsets are multiples of that. */
#include "device/cuda/vec_f16.cuh"

#include "ops/rows/move.h"

enum { THREADS = 256 };

/* Copies words of type W; x NULL: stores zeros. */
template <typename W> static __global__ void move_words(const W *x, W *y, LineMove m, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t o = i / m.len, at = i % m.len;
        W       zero = {};
        y[m.y_at + o * m.y_step + at] = x ? x[m.x_at + o * m.x_step + at] : zero;
    }
}

/* Copies elements to another dtype. */
static __global__ void move_converted(TensorView x, TensorView y, LineMove m, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * THREADS) {
        int64_t o = i / m.len, at = i % m.len;
        any_set(y.data, y.type.dtype, m.y_at + o * m.y_step + at, any_get(x.data, x.type.dtype, m.x_at + o * m.x_step + at));
    }
}

template <typename W> static void launch_words(const KernelArgs *args, void *y, LineMove m)
{
    int64_t     count = m.outer * m.len;
    const void *x = m.x ? m.x->data : NULL;
    move_words<W><<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>((const W *)x, (W *)y, m, count);
}

static void move_lines(const KernelArgs *args, LineMove m)
{
    const TensorView *x = m.x, *y = &args->out[0];
    int64_t           count = m.outer * m.len, wide = 16 / dtype_bytes(y->type.dtype, 1);
    bool packs = !((m.len | m.x_at | m.x_step | m.y_at | m.y_step) % wide) && is_aligned16(y->data) && (!x || is_aligned16(x->data));
    if (x && x->type.dtype != y->type.dtype) {
        move_converted<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(*x, *y, m, count);
    } else if (packs) {
        LineMove words = {x, m.outer, m.len / wide, m.x_at / wide, m.x_step / wide, m.y_at / wide, m.y_step / wide};
        launch_words<uint4>(args, y->data, words);
    } else if (wide == 4) {
        launch_words<uint32_t>(args, y->data, m);
    } else {
        launch_words<uint16_t>(args, y->data, m);
    }
}

/* Makes the result by `count` moves. */
static Status move_all(const KernelArgs *args, const LineMove *moves, int count)
{
    for (int i = 0; i < count; i++) move_lines(args, moves[i]);
    return CUDA_LAUNCHED();
}

static Status concat_run(const KernelArgs *args)
{
    LineMove moves[MOST_MOVES];
    return move_all(args, moves, concat_moves(args, moves));
}

static Status slice_run(const KernelArgs *args)
{
    LineMove moves[MOST_MOVES];
    return move_all(args, moves, slice_moves(args, moves));
}

static Status pad_run(const KernelArgs *args)
{
    LineMove moves[MOST_MOVES];
    return move_all(args, moves, pad_moves(args, moves));
}

CUDA_KERNELS(concat, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = concat_run, .name = "lines"})
CUDA_KERNELS(slice, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = slice_run, .name = "lines"})
CUDA_KERNELS(pad, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = pad_run, .name = "lines"})
