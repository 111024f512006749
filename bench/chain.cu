/* Chains of five element-wise ops on CUDA, of [16384, 4096] elements in bf16 and fp32: the share of a copy's bandwidth that each chain
 * reaches, if each input and output is moved once. The copy moves two tensors of that size in the same call.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/chain bench/chain.cu \
 *       src/ops/elementwise/chain.cu && build/chain
 */
#include "bench.cuh"

#include "device/cuda/vec.cuh"
#include "ops/elementwise/chain.h"

enum { ROWS = 16384, COLS = 4096, INPUTS = 4, OUTPUTS = 2, STEPS = 5, RUNS = 10, BLOCKS = 4096, BLOCK_THREADS = 256 };

/* How an input is broadcast. */
enum Form { WHOLE, A_ROW, A_COLUMN };

/* Result of step i, as an operand. */
static constexpr int r(int i)
{
    return CHAIN_RESULT + i;
}

/* ChainStep.dtype of the steps is set before a run. */
static const struct {
    const char *name;
    int         inputs;
    Form        form[INPUTS];
    int         outputs;
    ChainStep   steps[STEPS];
} chains[] = {
    {"((x + z) x / 2 + z) / 2",
     2,
     {WHOLE, WHOLE},
     1,
     {{CHAIN_ADD, 0, {0, 1, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(0), 0, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(1), -1, -1}, 0.5f, -1},
      {CHAIN_ADD, 0, {r(2), 1, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(3), -1, -1}, 0.5f, 0}}},
    {"x - max((x - z) / z, x) z",
     2,
     {WHOLE, WHOLE},
     1,
     {{CHAIN_SUB, 0, {0, 1, -1}, 0, -1},
      {CHAIN_DIV, 0, {r(0), 1, -1}, 0, -1},
      {CHAIN_MAXIMUM, 0, {r(1), 0, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(2), 1, -1}, 0, -1},
      {CHAIN_SUB, 0, {0, r(3), -1}, 0, 0}}},
    {"(silu(a) b + c) a / 2",
     3,
     {WHOLE, WHOLE, WHOLE},
     1,
     {{CHAIN_SILU, 0, {0, -1, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(0), 1, -1}, 0, -1},
      {CHAIN_ADD, 0, {r(1), 2, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(2), -1, -1}, 0.5f, -1},
      {CHAIN_MUL, 0, {r(3), 0, -1}, 0, 0}}},
    {"sigmoid(a) tanh(b) + silu(c)",
     3,
     {WHOLE, WHOLE, WHOLE},
     1,
     {{CHAIN_SIGMOID, 0, {0, -1, -1}, 0, -1},
      {CHAIN_TANH, 0, {1, -1, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(0), r(1), -1}, 0, -1},
      {CHAIN_SILU, 0, {2, -1, -1}, 0, -1},
      {CHAIN_ADD, 0, {r(2), r(3), -1}, 0, 0}}},
    {"(tanh(gelu(a) b) + a) / 2",
     2,
     {WHOLE, WHOLE},
     1,
     {{CHAIN_GELU, 0, {0, -1, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(0), 1, -1}, 0, -1},
      {CHAIN_TANH, 0, {r(1), -1, -1}, 0, -1},
      {CHAIN_ADD, 0, {r(2), 0, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(3), -1, -1}, 0.5f, 0}}},
    {"x 1.5 / 16, one input",
     1,
     {WHOLE},
     1,
     {{CHAIN_SCALE, 0, {0, -1, -1}, 1.5f, -1},
      {CHAIN_SCALE, 0, {r(0), -1, -1}, 0.5f, -1},
      {CHAIN_SCALE, 0, {r(1), -1, -1}, 0.5f, -1},
      {CHAIN_SCALE, 0, {r(2), -1, -1}, 0.5f, -1},
      {CHAIN_SCALE, 0, {r(3), -1, -1}, 0.5f, 0}}},
    {"silu(x w + bias) / 2 + x",
     3,
     {WHOLE, A_ROW, A_ROW},
     1,
     {{CHAIN_MUL, 0, {0, 1, -1}, 0, -1},
      {CHAIN_ADD, 0, {r(0), 2, -1}, 0, -1},
      {CHAIN_SILU, 0, {r(1), -1, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(2), -1, -1}, 0.5f, -1},
      {CHAIN_ADD, 0, {r(3), 0, -1}, 0, 0}}},
    {"relu(x rstd w + bias) / 2",
     4,
     {WHOLE, A_COLUMN, A_ROW, A_ROW},
     1,
     {{CHAIN_MUL, 0, {0, 1, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(0), 2, -1}, 0, -1},
      {CHAIN_ADD, 0, {r(1), 3, -1}, 0, -1},
      {CHAIN_RELU, 0, {r(2), -1, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(3), -1, -1}, 0.5f, 0}}},
    {"gated MLP backward, two outputs",
     3,
     {WHOLE, WHOLE, WHOLE},
     2,
     {{CHAIN_SILU, 0, {0, -1, -1}, 0, -1},
      {CHAIN_MUL, 0, {r(0), 2, -1}, 0, 1},
      {CHAIN_MUL, 0, {2, 1, -1}, 0, -1},
      {CHAIN_SILU_BWD, 0, {r(2), 0, -1}, 0, -1},
      {CHAIN_SCALE, 0, {r(3), -1, -1}, 0.5f, 0}}},
};

/* The kernel's file needs it from the program. */
extern "C" int64_t type_numel(const TensorType *type)
{
    int64_t numel = 1;
    for (int d = 0; d < type->ndim; d++) numel *= type->dim[d];
    return numel;
}
extern "C" const CudaKernelList cuda_kernels_chain;

/* Numbers from -1 to 1. */
static __global__ void fill_any(void *p, int dtype, int64_t count, unsigned seed)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK_THREADS) {
        unsigned h = (unsigned)i * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        elem_set(p, dtype, i, (float)((int)((h ^ h >> 13) % 2001) - 1000) * 1e-3f);
    }
}

static __global__ void copy(uint4 *to, const uint4 *from, int64_t count)
{
    for (int64_t i = (int64_t)blockIdx.x * BLOCK_THREADS + threadIdx.x; i < count; i += (int64_t)gridDim.x * BLOCK_THREADS) to[i] = from[i];
}

/* The fastest of several runs, in seconds. */
template <typename F> static double fastest(F run)
{
    cudaEvent_t begin, end;
    float       best = 1e9f, ms;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = 0; i < RUNS; i++) {
        check(cudaEventRecord(begin), "event");
        run();
        check(cudaEventRecord(end), "event");
        check(cudaEventSynchronize(end), "run");
        check(cudaEventElapsedTime(&ms, begin, end), "event");
        if (ms < best) best = ms;
    }
    return (double)best * 1e-3;
}

static TensorView view_of(void *data, DType dtype, int64_t rows, int64_t cols)
{
    return {data, {dtype, 2, {rows, cols}}};
}

static int64_t bytes_of(const TensorView &view)
{
    return type_numel(&view.type) * (view.type.dtype == DT_F32 ? 4 : 2);
}

int main(void)
{
    static const DType dtypes[] = {DT_BF16, DT_F32};
    void              *in[INPUTS], *out[OUTPUTS];
    for (void *&p : in) check(cudaMalloc(&p, (int64_t)ROWS * COLS * 4), "memory");
    for (void *&p : out) check(cudaMalloc(&p, (int64_t)ROWS * COLS * 4), "memory");
    for (DType dtype : dtypes) {
        int64_t packs = bytes_of(view_of(NULL, dtype, ROWS, COLS)) / 16;
        double  most = 2 * 16 * (double)packs / fastest([&] { copy<<<BLOCKS, BLOCK_THREADS>>>((uint4 *)out[0], (uint4 *)in[0], packs); });
        printf("%s, copy: %.2f TB/s\n", dtype == DT_F32 ? "fp32" : "bf16", most * 1e-12);
        for (const auto &chain : chains) {
            TensorView ins[INPUTS] = {}, outs[OUTPUTS] = {};
            ChainAttrs attrs = {};
            double     bytes = 0;
            for (int k = 0; k < chain.inputs; k++) {
                ins[k] = view_of(in[k], dtype, chain.form[k] == A_ROW ? 1 : ROWS, chain.form[k] == A_COLUMN ? 1 : COLS);
                fill_any<<<BLOCKS, BLOCK_THREADS>>>(in[k], dtype, type_numel(&ins[k].type), k);
                bytes += (double)bytes_of(ins[k]);
            }
            for (int k = 0; k < chain.outputs; k++) {
                outs[k] = view_of(out[k], dtype, ROWS, COLS);
                bytes += (double)bytes_of(outs[k]);
            }
            for (ChainStep step : chain.steps) {
                step.dtype = dtype;
                chain_add_step(&attrs, step);
            }
            KernelArgs args = {};
            args.in = ins, args.num_in = chain.inputs, args.out = outs, args.num_out = chain.outputs, args.attrs = &attrs;
            double seconds = fastest([&] {
                if (cuda_kernels_chain.rows[0].run(&args) != OK) exit(1);
            });
            printf("%-32s %.2f TB/s, %.2f of a copy\n", chain.name, bytes / seconds * 1e-12, bytes / seconds / most);
        }
    }
    return 0;
}
