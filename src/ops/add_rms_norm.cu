/* add_rms_norm on CUDA: a block a row. The norm is of s as it is stored, so that rms_norm of s gives the same bits. */
#include "ops/attrs.h"
#include "ops/rms_norm.cuh"

static Status add_rms_norm_run(const KernelArgs *args)
{
    const TensorView   *a = &args->in[0], *b = &args->in[1], *w = &args->in[2], *s = &args->out[0], *y = &args->out[1];
    const RmsNormAttrs *attrs = (const RmsNormAttrs *)args->attrs;
    int64_t             cols = type_cols(&a->type), rows = type_rows(&a->type);
    float              *rstd = (float *)args->out[2].data, eps = (float)attrs->eps;
    const TensorView   *views[] = {a, b, w, s, y};
    bool                whole = cols % (16 / dtype_bytes(a->type.dtype, 1)) == 0 && is_aligned16(w->data);
    if (whole && views_are(a->type.dtype, views, 5)) {
        CUDA_FLOAT(a->type.dtype, T,
                   rms_norm_packs<T, true><<<(unsigned)rows, row_threads(cols / Pack<T>::N), 0, cuda_stream(args)>>>(
                       (const T *)a->data, (const T *)b->data, (const T *)w->data, (T *)s->data, (T *)y->data, rstd, cols, eps));
    } else {
        rms_norm_elements<<<(unsigned)rows, 256, 0, cuda_stream(args)>>>(*a, *b, *w, *s, *y, rstd, cols, a->type.dtype, eps);
    }
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(add_rms_norm, {.dtypes = DT_SET_FLOAT, .run = add_rms_norm_run, .name = "rows"})
