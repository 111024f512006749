/* rms_norm on CUDA: a block a row. Reads x twice (once from cache), writes y. Sums in fp32, fixed order. */
#include "ops/attrs.h"
#include "ops/rms_norm.cuh"

static Status rms_norm_run(const KernelArgs *args)
{
    const TensorView   *x = &args->in[0], *w = &args->in[1], *y = &args->out[0];
    const RmsNormAttrs *attrs = (const RmsNormAttrs *)args->attrs;
    int64_t             cols = type_cols(&x->type), rows = type_rows(&x->type);
    float              *rstd = (float *)args->out[1].data, eps = (float)attrs->eps;
    const TensorView   *views[] = {x, w, y};
    bool                whole = cols % (16 / dtype_bytes(x->type.dtype, 1)) == 0 && is_aligned16(w->data);
    if (whole && views_are(x->type.dtype, views, 3)) {
        CUDA_FLOAT(x->type.dtype, T,
                   rms_norm_packs<T, false><<<(unsigned)rows, row_threads(cols / Pack<T>::N), 0, cuda_stream(args)>>>(
                       (const T *)x->data, NULL, (const T *)w->data, NULL, (T *)y->data, rstd, cols, eps));
    } else {
        TensorView none = {};
        rms_norm_elements<<<(unsigned)rows, 256, 0, cuda_stream(args)>>>(*x, none, *w, none, *y, rstd, cols, x->type.dtype, eps);
    }
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(rms_norm, {.dtypes = DT_SET_FLOAT, .run = rms_norm_run, .name = "rows"})
