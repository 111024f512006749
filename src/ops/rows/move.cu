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

template <typename W> static void launch_words(const KernelArgs *args, const void *x, void *y, LineMove m)
{
    int64_t count = m.outer * m.len;
    move_words<W><<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>((const W *)x, (W *)y, m, count);
}

static void move_lines(const KernelArgs *args, const TensorView *x, LineMove m)
{
    const TensorView *y = &args->out[0];
    int64_t           count = m.outer * m.len, wide = 16 / dtype_bytes(y->type.dtype, 1);
    bool packs = !((m.len | m.x_at | m.x_step | m.y_at | m.y_step) % wide) && is_aligned16(y->data) && (!x || is_aligned16(x->data));
    if (x && x->type.dtype != y->type.dtype) {
        move_converted<<<cuda_grid(count, THREADS), THREADS, 0, cuda_stream(args)>>>(*x, *y, m, count);
    } else if (packs) {
        LineMove words = {m.outer, m.len / wide, m.x_at / wide, m.x_step / wide, m.y_at / wide, m.y_step / wide};
        launch_words<uint4>(args, x ? x->data : NULL, y->data, words);
    } else if (wide == 4) {
        launch_words<uint32_t>(args, x ? x->data : NULL, y->data, m);
    } else {
        launch_words<uint16_t>(args, x ? x->data : NULL, y->data, m);
    }
}

static int args_dim(const KernelArgs *args)
{
    return dim_of(((const ConcatAttrs *)args->attrs)->dim, args->in[0].type.ndim);
}

static Status concat_run(const KernelArgs *args)
{
    int64_t at = 0;
    int     dim = args_dim(args);
    for (int k = 0; k < args->num_in; k++) {
        const TensorView *in = &args->in[k];
        if (!in->data) continue;
        move_lines(args, in, line_move(&in->type, &args->out[0].type, dim, 0, at, in->type.dim[dim]));
        at += in->type.dim[dim];
    }
    return CUDA_LAUNCHED();
}

static Status slice_run(const KernelArgs *args)
{
    const SliceAttrs *attrs = (const SliceAttrs *)args->attrs;
    move_lines(args, &args->in[0], line_move(&args->in[0].type, &args->out[0].type, args_dim(args), attrs->begin, 0, attrs->size));
    return CUDA_LAUNCHED();
}

static Status pad_run(const KernelArgs *args)
{
    const SliceAttrs *attrs = (const SliceAttrs *)args->attrs;
    const TensorType *x = &args->in[0].type, *y = &args->out[0].type;
    int               dim = args_dim(args);
    if (attrs->before) move_lines(args, NULL, line_move(x, y, dim, 0, 0, attrs->before));
    if (attrs->after) move_lines(args, NULL, line_move(x, y, dim, 0, attrs->before + x->dim[dim], attrs->after));
    move_lines(args, &args->in[0], line_move(x, y, dim, 0, attrs->before, x->dim[dim]));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(concat, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = concat_run, .name = "lines"})
CUDA_KERNELS(slice, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = slice_run, .name = "lines"})
CUDA_KERNELS(pad, {.dtypes = DT_SET_DECODE | DT_SET(DT_I32), .run = pad_run, .name = "lines"})
