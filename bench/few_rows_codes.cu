/* Products of few rows with codes on CUDA: the products of Qwen3-8B's layers one after another in a graph, each with its own weights, and
 * the same in bf16. Prints the time that reading the weights takes at 4.2 TB/s. Also whether these and other shapes give the bits that
 * few_rows.cu gives for the codes decoded to bf16. With one row, also with the norms and SwiGLU of a layer fused into its products.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/few_rows_codes bench/few_rows_codes.cu \
 *       src/ops/products/few_rows_codes.cu src/ops/products/few_rows_codes_one.cu src/ops/products/few_rows_bulk.cu \
 *       src/ops/products/few_rows_group.cu src/ops/products/few_rows.cu -x cu src/device/cuda/tensor_map.c && build/few_rows_codes
 * [ROWS...] */
#include "bench.cuh"
#include "ops/products/few_rows.h"
#include "ops/products/few_rows_codes.h"

#include <cuda_fp8.h>
#include <string.h>
#include <vector>

enum { PRODUCTS = 4, LAYERS = 6, MOST_ROWS = 64, MOST_N = 24576, MOST_K = 12288, TILE = 128, WARM = 3, RUNS = 10 };

static const int shape_n[PRODUCTS] = {6144, 4096, 24576, 4096}, shape_k[PRODUCTS] = {4096, 4096, 4096, 12288};

/* Fills with all codes, except NaN codes of e4m3. */
static __global__ void fill_codes(uint8_t *p, int64_t count, bool e4m3)
{
    int64_t step = (int64_t)gridDim.x * FILL_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x; i < count; i += step) {
        uint8_t code = (uint8_t)hash(i, 3);
        p[i] = e4m3 && (code & 127) == 127 ? 0 : code;
    }
}

static __global__ void fill_scales(float *p, int count)
{
    for (int i = threadIdx.x; i < count; i += FILL_THREADS) p[i] = 1e-3f * (float)(1 + hash(i, 4) % 1000);
}

/* Decodes codes (n, k): int8 codes to whole numbers, e4m3 codes times the scale of their tile. */
static __global__ void decode(const uint8_t *codes, const float *scale, bf16 *numbers, int n, int k, bool e4m3)
{
    int64_t step = (int64_t)gridDim.x * FILL_THREADS, tiles = (k + TILE - 1) / TILE;
    for (int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x; i < (int64_t)n * k; i += step) {
        float code = e4m3 ? __half2float(__half(__nv_cvt_fp8_to_halfraw(codes[i], __NV_E4M3))) : (float)(int8_t)codes[i];
        numbers[i] = __float2bfloat16(e4m3 ? code * scale[i / k / TILE * tiles + i % k / TILE] : code);
    }
}

static struct {
    bf16    *x, *numbers;
    float   *y, *other;
    uint8_t *w;
    float   *scale;
} at;

static Gemm product(DType dtype, int64_t offset, int m, int n, int k)
{
    Gemm g = {};
    g.m = m, g.n = n, g.k = k;
    g.a.data = at.x, g.a.dtype = DT_BF16, g.a.stride = k;
    g.b.data = at.w, g.b.dtype = dtype, g.b.stride = k, g.b.offset = offset, g.b.trans = true;
    if (dtype != DT_BF16) g.b.scale = at.scale, g.b.scaling = dtype == DT_I8 ? GEMM_SCALE_COLS : GEMM_SCALE_TILES;
    g.b.to_bf16 = true, g.b.scale_stride = (k + TILE - 1) / TILE;
    g.c.data = at.y, g.c.dtype = DT_BF16, g.c.stride = n;
    g.alpha = 1;
    g.rows_alone = g.early = g.b_constant = true;
    return g;
}

static void run(const Gemm &g, cudaStream_t stream)
{
    if ((g.b.dtype == DT_BF16 ? few_rows_bulk_run(&g, g.n, NULL, stream) : few_rows_codes_run(&g, stream)) != OK) exit(1);
}

/* Runs the product with the fusions of a layer: QKV and gate/up read the norm of a sum, and SwiGLU joins gate and up. */
static void run_fused(Gemm g, cudaStream_t stream)
{
    RowsNorm   norm = {at.x, at.x + MOST_K, at.x + 2 * MOST_K, at.x + 3 * MOST_K, 1e-6f, 0};
    RowsFusion fusion = {1, g.n == MOST_N, false, g.n > g.k ? &norm : NULL};
    int64_t    rows = g.n;
    if (!fusion.norm) return run(g, stream);
    if (fusion.gated) g.n /= 2;
    if (g.b.dtype != DT_BF16 && !few_rows_codes_one_fit(&g, &fusion)) exit(2);
    if ((g.b.dtype == DT_BF16 ? few_rows_bulk_run(&g, rows, &fusion, stream) : few_rows_codes_one_run(&g, &fusion, stream)) != OK) exit(1);
}

/* Microseconds of one replay of all products. */
static double time_all(const std::vector<Gemm> &all, bool is_fused, cudaStream_t stream)
{
    auto launch = [&] {
        for (const Gemm &g : all) is_fused ? run_fused(g, stream) : run(g, stream);
    };
    return time_graph(launch, WARM, RUNS, stream);
}

/* Compares fp32 results; the scales of columns are multiplied in this function. */
static bool same_bits(Gemm g, cudaStream_t stream)
{
    size_t             count = (size_t)(g.m * g.n);
    std::vector<float> a(count), b(count), scale(MOST_N);
    bool               e4m3 = g.b.dtype == DT_E4M3;
    g.c.dtype = DT_F32;
    check(cudaMemset(at.y, 255, count * sizeof(float)), "set");
    run(g, stream);
    decode<<<1024, FILL_THREADS, 0, stream>>>((uint8_t *)g.b.data + g.b.offset, at.scale, at.numbers, (int)g.n, (int)g.k, e4m3);
    g.b.data = at.numbers, g.b.offset = 0, g.b.dtype = DT_BF16, g.c.data = at.other;
    g.b.scale = NULL, g.b.scaling = GEMM_SCALE_WHOLE;
    if (few_rows_run(&g, stream) != OK) exit(1);
    check(cudaStreamSynchronize(stream), "run");
    check(cudaMemcpy(a.data(), at.y, count * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(b.data(), at.other, count * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    check(cudaMemcpy(scale.data(), at.scale, MOST_N * sizeof(float), cudaMemcpyDeviceToHost), "copy");
    for (size_t i = 0; i < count && !e4m3; i++) b[i] *= scale[i % (size_t)g.n];
    return memcmp(a.data(), b.data(), count * sizeof(float)) == 0;
}

static void time_layers(DType dtype, int m, cudaStream_t stream)
{
    std::vector<Gemm> all, each[PRODUCTS];
    int64_t           from = 0;
    for (int i = 0; i < LAYERS * PRODUCTS; i++) {
        int n = shape_n[i % PRODUCTS], k = shape_k[i % PRODUCTS];
        all.push_back(product(dtype, from, m, n, k));
        each[i % PRODUCTS].push_back(all.back());
        from += (int64_t)n * k;
    }
    double bytes = (double)from / LAYERS * (dtype == DT_BF16 ? 2 : 1);
    printf("%-4s %2d rows: a layer %7.2f us, limit %6.2f ",
           dtype == DT_BF16 ? "bf16"
           : dtype == DT_I8 ? "int8"
                            : "fp8",
           m, time_all(all, false, stream) / LAYERS, bytes / 4.2e6);
    if (m == 1) printf("fused %6.2f ", time_all(all, true, stream) / LAYERS);
    for (int i = 0; i < PRODUCTS; i++)
        printf(" %dx%d %.2f%s", shape_n[i], shape_k[i], time_all(each[i], false, stream) / LAYERS,
               dtype == DT_BF16 || same_bits(each[i][0], stream) ? "" : " BITS DIFFER");
    printf("\n");
    fflush(stdout);
}

/* Compares the bits at many other row counts, column counts and lengths. */
static void compare(DType dtype, cudaStream_t stream)
{
    static const int ns[] = {7, 50, 144, 2050, 6146, 20000}, ks[] = {80, 128, 528, 1152, 4096, 4224};
    int              differ = 0, count = 0;
    for (int m = 1; m <= MOST_ROWS; m += m < 9 ? 1 : 5)
        for (int n : ns)
            for (int k : ks) {
                Gemm g = product(dtype, 0, m, n, k);
                g.b_constant = m % 3;
                count++;
                if (!same_bits(g, stream) && ++differ < 20) printf("%d x %d x %d: BITS DIFFER\n", m, n, k);
            }
    printf("%s: %d of %d other shapes differ\n", dtype == DT_I8 ? "int8" : "fp8", differ, count);
}

int main(int argc, char **argv)
{
    cudaStream_t     stream;
    int64_t          numel = 0;
    std::vector<int> rows = {1, 8, 64};
    if (argc > 1) rows.clear();
    for (int i = 1; i < argc; i++) rows.push_back(atoi(argv[i]));
    for (int i = 0; i < PRODUCTS; i++) numel += (int64_t)LAYERS * shape_n[i] * shape_k[i];
    check(cudaStreamCreate(&stream), "stream");
    check(cudaMalloc(&at.w, numel * 2), "memory");
    check(cudaMalloc(&at.x, MOST_ROWS * MOST_K * sizeof(bf16)), "memory");
    check(cudaMalloc(&at.numbers, (int64_t)MOST_N * MOST_K * sizeof(bf16)), "memory");
    check(cudaMalloc(&at.y, MOST_ROWS * MOST_N * sizeof(float)), "memory");
    check(cudaMalloc(&at.other, MOST_ROWS * MOST_N * sizeof(float)), "memory");
    check(cudaMalloc(&at.scale, MOST_N * sizeof(float)), "memory");
    fill<<<64, FILL_THREADS>>>(at.x, MOST_ROWS * MOST_K, 2);
    fill_scales<<<1, FILL_THREADS>>>(at.scale, MOST_N);
    for (DType dtype : {DT_I8, DT_E4M3}) {
        fill_codes<<<1024, FILL_THREADS>>>(at.w, numel, dtype == DT_E4M3);
        check(cudaDeviceSynchronize(), "fill");
        for (int m : rows) time_layers(dtype, m, stream);
        compare(dtype, stream);
    }
    fill<<<1024, FILL_THREADS>>>((bf16 *)at.w, numel, 1);
    check(cudaDeviceSynchronize(), "fill");
    for (int m : rows) time_layers(DT_BF16, m, stream);
    return 0;
}
