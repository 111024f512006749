/* Products of few rows on CUDA. A graph runs the products of a model's layers one after another, each with its own weights: by
 * few_rows_bulk.cu, by few_rows.cu, and by few_rows_bulk.cu with sums in parts. Prints whether the first two give the same bits, and the
 * time that reading the weights takes at 4.2 TB/s.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/few_rows bench/few_rows.cu \
 *       src/ops/products/few_rows.cu src/ops/products/few_rows_bulk.cu src/ops/products/few_rows_group.cu \
 *       -x cu src/device/cuda/tensor_map.c && build/few_rows [ROWS...] */
#include "bench.cuh"
#include "ops/products/few_rows.h"

#include <string.h>
#include <vector>

enum { PRODUCTS = 4, MOST_ROWS = 64, MOST_SPLIT = 2048, WARM = 3, RUNS = 10 };

static const struct {
    const char *name;
    int         layers, n[PRODUCTS], k[PRODUCTS];
} models[] = {{"Qwen3-0.6B", 28, {4096, 1024, 6144, 1024}, {1024, 2048, 1024, 3072}},
              {"Llama-3.2-1B", 16, {3072, 2048, 16384, 2048}, {2048, 2048, 2048, 8192}},
              {"Qwen3-8B", 6, {6144, 4096, 24576, 4096}, {4096, 4096, 4096, 12288}}};

static Gemm product(bf16 *x, bf16 *w, bf16 *y, int m, int n, int k)
{
    Gemm g = {};
    g.m = m, g.n = n, g.k = k;
    g.a.data = x, g.a.dtype = DT_BF16, g.a.stride = k;
    g.b.data = w, g.b.dtype = DT_BF16, g.b.stride = k, g.b.trans = true;
    g.c.data = y, g.c.dtype = DT_BF16, g.c.stride = n;
    g.alpha = 1;
    g.rows_alone = g.early = g.b_constant = true;
    return g;
}

enum How { BULK, BULK_PARTS, PLAIN };

/* BULK_PARTS: products with few columns are summed in four parts of k. */
static void run(const Gemm &g, How how, cudaStream_t stream)
{
    RowsFusion parts = {how == BULK_PARTS && g.n <= MOST_SPLIT ? 4 : 1, false, false};
    if ((how == PLAIN ? few_rows_run(&g, stream) : few_rows_bulk_run(&g, g.n, &parts, stream)) != OK) exit(1);
}

/* Microseconds of one replay of all products. */
static double time_all(const std::vector<Gemm> &all, How how, cudaStream_t stream)
{
    auto launch = [&] {
        for (const Gemm &g : all) run(g, how, stream);
    };
    return time_graph(launch, WARM, RUNS, stream);
}

static bool same_bits(Gemm g, bf16 *other, cudaStream_t stream)
{
    size_t            bytes = (size_t)(g.m * g.n) * sizeof(bf16);
    std::vector<char> a(bytes), b(bytes);
    run(g, BULK, stream);
    check(cudaMemcpy(a.data(), g.c.data, bytes, cudaMemcpyDeviceToHost), "copy");
    g.c.data = other;
    run(g, PLAIN, stream);
    check(cudaMemcpy(b.data(), other, bytes, cudaMemcpyDeviceToHost), "copy");
    return memcmp(a.data(), b.data(), bytes) == 0;
}

int main(int argc, char **argv)
{
    cudaStream_t     stream;
    bf16            *x, *w, *y, *other;
    int64_t          most = 0, most_n = 0, most_k = 0;
    std::vector<int> rows = {1, 8, 64};
    if (argc > 1) rows.clear();
    for (int i = 1; i < argc; i++) rows.push_back(atoi(argv[i]));
    for (auto &model : models) {
        int64_t numel = 0;
        for (int i = 0; i < PRODUCTS; i++) {
            numel += (int64_t)model.layers * model.n[i] * model.k[i];
            most_n = model.n[i] > most_n ? model.n[i] : most_n, most_k = model.k[i] > most_k ? model.k[i] : most_k;
        }
        most = numel > most ? numel : most;
    }
    check(cudaStreamCreate(&stream), "stream");
    check(cudaMalloc(&w, most * sizeof *w), "memory");
    check(cudaMalloc(&x, MOST_ROWS * most_k * sizeof *x), "memory");
    check(cudaMalloc(&y, MOST_ROWS * most_n * sizeof *y), "memory");
    check(cudaMalloc(&other, MOST_ROWS * most_n * sizeof *other), "memory");
    fill<<<1024, FILL_THREADS>>>(w, most, 1);
    fill<<<64, FILL_THREADS>>>(x, MOST_ROWS * most_k, 2);
    check(cudaDeviceSynchronize(), "fill");
    for (auto &model : models)
        for (int m : rows) {
            std::vector<Gemm> all, each[PRODUCTS];
            double            bytes = 0;
            bf16             *at = w;
            for (int i = 0; i < model.layers * PRODUCTS; i++) {
                int n = model.n[i % PRODUCTS], k = model.k[i % PRODUCTS];
                all.push_back(product(x, at, y, m, n, k));
                each[i % PRODUCTS].push_back(all.back());
                at += (int64_t)n * k, bytes += 2.0 * n * k;
            }
            printf("%-12s %2d rows: a layer %7.2f us, in parts %7.2f, few_rows.cu %7.2f, limit %6.2f ", model.name, m,
                   time_all(all, BULK, stream) / model.layers, time_all(all, BULK_PARTS, stream) / model.layers,
                   time_all(all, PLAIN, stream) / model.layers, bytes / model.layers / 4.2e6);
            for (int i = 0; i < PRODUCTS; i++)
                printf(" %dx%d %.2f%s", model.n[i], model.k[i], time_all(each[i], BULK, stream) / model.layers,
                       same_bits(each[i][0], other, stream) ? "" : " BITS DIFFER");
            printf("\n");
        }
    return 0;
}
