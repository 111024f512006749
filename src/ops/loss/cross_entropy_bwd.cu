/* cross_entropy_bwd on CUDA: dlogits = dloss (exp(logits - lse) - one_hot(label)) + dlse exp(logits - lse). */
#include "ops/loss/cross_entropy.cuh"

/* dlosses or dlse NULL: 0 */
typedef struct Rows {
    const float   *dlosses, *lse, *dlse;
    const int32_t *labels;
} Rows;

template <typename T, bool VEC>
static __global__ void __launch_bounds__(ROW_THREADS) gradient_rows(Rows rows, const T *logits, T *dlogits, int64_t cols)
{
    enum { N = VEC ? (int)Pack<T>::N : 1 };
    int64_t at = (int64_t)blockIdx.x * cols;
    int32_t label = rows.labels[blockIdx.x];
    bool    ignored = label == IGNORE_INDEX, none = ignored && !rows.dlse;
    float   dloss = rows.dlosses && !ignored ? rows.dlosses[blockIdx.x] : 0, shift = rows.lse[blockIdx.x];
    if (!ignored && (label < 0 || label >= cols)) dloss = NAN;
    float all = rows.dlse ? dloss + rows.dlse[blockIdx.x] : dloss;
    each_piece<T, VEC>(logits + at, cols, [&](int64_t c, float *x) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            x[i] = none ? 0 : all * fast_exp(x[i] - shift);
            if (c + i == label) x[i] -= dloss;
        }
        if (VEC)
            store_n<VEC ? (int)N : (int)Pack<T>::N>(dlogits + at + c, x);
        else
            dlogits[at + c] = from_float<T>(x[0]);
    });
}

template <typename T> static void launch(const KernelArgs *args)
{
    const TensorView *logits = &args->in[1];
    int64_t           count = type_rows(&logits->type), cols = type_cols(&logits->type);
    Rows              rows = {(const float *)args->in[0].data, (const float *)args->in[3].data, (const float *)args->in[4].data,
                              (const int32_t *)args->in[2].data};
    T                *dlogits = (T *)args->out[0].data;
    if (!count) return;
    if (cols % Pack<T>::N == 0 && is_aligned16(logits->data) && is_aligned16(dlogits))
        gradient_rows<T, true><<<(unsigned)count, ROW_THREADS, 0, cuda_stream(args)>>>(rows, (const T *)logits->data, dlogits, cols);
    else
        gradient_rows<T, false><<<(unsigned)count, ROW_THREADS, 0, cuda_stream(args)>>>(rows, (const T *)logits->data, dlogits, cols);
}

static Status cross_entropy_bwd_run(const KernelArgs *args)
{
    CUDA_FLOAT(args->in[1].type.dtype, T, launch<T>(args));
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(cross_entropy_bwd, {.dtypes = DT_SET_FLOAT, .run = cross_entropy_bwd_run, .name = "rows"})
