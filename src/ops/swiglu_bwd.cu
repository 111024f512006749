/* swiglu_bwd on CUDA: with s = sigmoid(gate): dup = dh gate s, dgate = dh up s (1 + gate (1 - s)). */
#include "ops/fp8_rows.cuh"
#include "ops/rows.cuh"

enum { OUT_DGATE, OUT_DUP, OUT_CODES };

/* Element (row, f) of gate and dgate is at row * stride + f, of up and dup the same from there. CODES: those of rows of dgate and dup
 * beside each other are wanted; dgate and dup, which are packed then, needn't be. */
template <typename T, bool CODES>
static __global__ void swiglu_bwd_packs(const T *dh, const T *gate, const T *up, T *dgate, T *dup, RowCodes q, int64_t rows, int64_t cols,
                                        int64_t stride)
{
    enum { N = Pack<T>::N };
    int64_t packs = cols / N;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * packs; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / packs, c = (i - row * packs) * N;
        float   d[N], g[N], u[N], dg[N];
        load_pack(dh + row * cols + c, d);
        load_pack(gate + row * stride + c, g);
        load_pack(up + row * stride + c, u);
#pragma unroll
        for (int k = 0; k < N; k++) {
            float s = 1.0f / (1.0f + exp_for<T>(-g[k]));
            dg[k] = d[k] * u[k] * s * (1.0f + g[k] * (1.0f - s));
            u[k] = d[k] * g[k] * s;
        }
        if (CODES) {
            store_result<CODES>(dgate, dg, q, row, c);
            store_result<CODES>(dgate, u, q, row, cols + c);
            continue;
        }
        if (dgate) store_pack(dgate + row * stride + c, dg);
        if (dup) store_pack(dup + row * stride + c, u);
    }
}

static __global__ void swiglu_bwd_elements(TensorView dh, TensorView gate, TensorView up, TensorView dgate, TensorView dup, int64_t up_at,
                                           int64_t rows, int64_t cols, int64_t stride)
{
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * cols; i += (int64_t)gridDim.x * blockDim.x) {
        int64_t row = i / cols, c = i - row * cols;
        float   g = elem_get(gate.data, gate.type.dtype, row * stride + c), u = elem_get(up.data, up.type.dtype, row * stride + up_at + c);
        float   d = elem_get(dh.data, dh.type.dtype, i), s = 1.0f / (1.0f + expf(-g));
        if (dgate.data) elem_set(dgate.data, dgate.type.dtype, row * stride + c, d * u * s * (1.0f + g * (1.0f - s)));
        if (dup.data) elem_set(dup.data, dup.type.dtype, row * stride + up_at + c, d * g * s);
    }
}

template <typename T>
static void launch_packs(const KernelArgs *args, const TensorView *up, const TensorView *dup, const RowCodes &q, int64_t rows, int64_t cols)
{
    const TensorView *gate = &args->in[1];
    bool              packed = up == gate;
    const T          *g = (const T *)gate->data;
    T                *dg = (T *)args->out[OUT_DGATE].data, *du = packed && dg ? dg + cols : (T *)dup->data;
    auto              kernel = row_codes_wanted(&q) ? swiglu_bwd_packs<T, true> : swiglu_bwd_packs<T, false>;
    kernel<<<cuda_grid(rows * cols / Pack<T>::N, 256), 256, 0, cuda_stream(args)>>>(
        (const T *)args->in[0].data, g, packed ? g + cols : (const T *)up->data, dg, du, q, rows, cols, packed ? 2 * cols : cols);
}

static Status swiglu_bwd_run(const KernelArgs *args)
{
    const TensorView *dh = &args->in[0], *gate = &args->in[1], *up = args->in[2].data ? &args->in[2] : gate;
    bool              packed = up == gate;
    const TensorView *dgate = &args->out[0], *dup = packed ? dgate : &args->out[1];
    int64_t           cols = type_cols(&dh->type), rows = type_rows(&dh->type), stride = packed ? 2 * cols : cols;
    const TensorView *views[] = {dh, gate, up, dgate, dup};
    RowCodes          q = row_codes(args, OUT_CODES, rows, stride);
    if (row_codes_wanted(&q)) {
        CUDA_FLOAT(dh->type.dtype, T, launch_packs<T>(args, up, dup, q, rows, cols));
    } else if (cols % 8 == 0 && views_are(DT_BF16, views, 5)) {
        launch_packs<__nv_bfloat16>(args, up, dup, q, rows, cols);
    } else {
        swiglu_bwd_elements<<<cuda_grid(rows * cols, 256), 256, 0, cuda_stream(args)>>>(*dh, *gate, *up, *dgate, *dup, packed ? cols : 0,
                                                                                        rows, cols, stride);
    }
    return CUDA_LAUNCHED();
}

CUDA_KERNELS(swiglu_bwd, {.dtypes = DT_SET_FLOAT,
                          .run = swiglu_bwd_run,
                          .name = "packs",
                          .except = {{.out = 1u << OUT_CODES, .dtypes = DT_SET(DT_E4M3)}}})
