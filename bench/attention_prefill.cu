/* Prefill's attention on CUDA: a chunk of a prompt attends the pages of all earlier tokens, by warpgroup products and by mma.sync. Prints
 * whether both give the same bits, and TFLOP/s (of unmasked scores only) beside those of training's kernel over a row of the same length.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/attention_prefill bench/attention_prefill.cu \
 *       src/ops/attention/attention_pages_f16.cu src/ops/attention/attention_pages_wgmma.cu src/ops/attention/attention_wgmma.cu \
 *       -x cu src/device/cuda/tensor_map.c && build/attention_prefill [CASE] */
#include "bench.cuh"
#include "ops/attention/attention_mma.cuh"

#define attention_pages_wgmma_serves(a) false
#include "ops/attention/attention_pages.cu"
#undef attention_pages_wgmma_serves

#include <string.h>
#include <vector>

enum { PAGE_LEN = 32, WARM = 2, RUNS = 8 };

static const struct {
    const char *name;
    int         heads, kv_heads, dim, window, start, len;
} cases[] = {
    {"0.6B", 16, 8, 128, 0, 0, 64},          {"0.6B", 16, 8, 128, 0, 0, 256},        {"0.6B", 16, 8, 128, 0, 0, 512},
    {"0.6B", 16, 8, 128, 0, 0, 1024},        {"0.6B", 16, 8, 128, 0, 0, 2048},       {"0.6B", 16, 8, 128, 0, 2048, 2048},
    {"0.6B", 16, 8, 128, 0, 6144, 2048},     {"0.6B", 16, 8, 128, 0, 6144, 512},     {"0.6B", 16, 8, 128, 0, 6150, 130},
    {"8B", 32, 8, 128, 0, 2048, 2048},       {"1B, D 64", 32, 8, 64, 0, 2048, 2048}, {"window", 32, 8, 128, 1000, 3001, 2000},
    {"1B, D 64", 32, 8, 64, 300, 1000, 777},
};

template <typename T> static T *take(size_t count)
{
    T *p;
    check(cudaMalloc(&p, count * sizeof(T)), "memory");
    check(cudaMemset(p, 0xff, count * sizeof(T)), "memory");
    return p;
}

typedef Status Kernel(const AttentionDims *a, cudaStream_t stream);

static double time_of(Kernel *kernel, const AttentionDims *a, cudaStream_t stream)
{
    cudaEvent_t begin, end;
    float       ms;
    check(cudaEventCreate(&begin), "event");
    check(cudaEventCreate(&end), "event");
    for (int i = 0; i < WARM + RUNS; i++) {
        if (i == WARM) check(cudaEventRecord(begin, stream), "event");
        if (kernel(a, stream) != OK) exit(1);
    }
    check(cudaEventRecord(end, stream), "event");
    check(cudaStreamSynchronize(stream), "run");
    check(cudaEventElapsedTime(&ms, begin, end), "event");
    return (double)ms * 1e-3 / RUNS;
}

static std::vector<char> bits(const void *device, size_t bytes)
{
    std::vector<char> host(bytes);
    check(cudaMemcpy(host.data(), device, bytes, cudaMemcpyDeviceToHost), "copy");
    return host;
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    for (auto &c : cases) {
        if (argc > 1 && !strstr(c.name, argv[1])) continue;
        int    total = c.start + c.len, row_pages = (total + PAGE_LEN - 1) / PAGE_LEN, num_pages = 2 * row_pages + 1;
        size_t cells = (size_t)num_pages * PAGE_LEN * c.kv_heads * c.dim, outs = (size_t)c.len * c.heads * c.dim;
        int    cols = (c.heads + 2 * c.kv_heads) * c.dim;
        double flops = 0;
        for (int t = c.start; t < total; t++) flops += 4.0 * c.heads * c.dim * (c.window && c.window < t + 1 ? c.window : t + 1);
        AttentionAttrs attrs = {};
        attrs.num_heads = c.heads, attrs.num_kv_heads = c.kv_heads, attrs.head_dim = c.dim, attrs.window = c.window;
        TensorType type = {};
        type.dtype = DT_BF16, type.ndim = 4, type.dim[0] = 1, type.dim[1] = c.len;
        AttentionDims a = attention_dims(&attrs, &type, NULL);
        bf16         *k = take<bf16>(cells), *v = take<bf16>(cells), *x = take<bf16>((size_t)total * cols), *o = take<bf16>(outs),
             *o2 = take<bf16>(outs);
        std::vector<int32_t> pages(row_pages);
        for (int i = 0; i < row_pages; i++)
            pages[i] = num_pages - 1 - 2 * i; /* pages aren't adjacent; the unused ones between them hold NaN */
        fill<<<1024, FILL_THREADS>>>(x, (int64_t)total * cols, 1, 2e-3f);
        for (int i = 0; i < row_pages; i++) { /* cells after the last token hold NaN too */
            int64_t at = (int64_t)pages[i] * PAGE_LEN * c.kv_heads * c.dim,
                    n = min(PAGE_LEN, total - i * PAGE_LEN) * (int64_t)c.kv_heads * c.dim;
            fill<<<64, FILL_THREADS>>>(k + at, n, 2 + i, 2e-3f);
            fill<<<64, FILL_THREADS>>>(v + at, n, 7777 + i, 2e-3f);
        }
        int32_t *table = take<int32_t>(row_pages), *starts = take<int32_t>(1);
        check(cudaMemcpy(table, pages.data(), row_pages * 4, cudaMemcpyHostToDevice), "copy");
        check(cudaMemcpy(starts, &c.start, 4, cudaMemcpyHostToDevice), "copy");
        a.q.data = x, a.q.batch_stride = 0, a.q.token_stride = cols;
        a.k.data = k, a.k.token_stride = c.kv_heads * c.dim, a.v = a.k, a.v.data = v;
        a.o.data = o, a.o.token_stride = c.heads * c.dim;
        a.pages.starts = starts, a.pages.table = table, a.pages.row_pages = row_pages, a.pages.page_len = PAGE_LEN,
        a.pages.num_pages = num_pages;
        double slow = time_of(attention_pages_prefill, &a, stream);
        a.o.data = o2;
        double fast = time_of(attention_pages_wgmma_prefill, &a, stream);
        bool   same = bits(o, outs * 2) == bits(o2, outs * 2);
        printf("%-10s start %5d len %5d window %5d  mma %8.1f us %6.1f TFLOP/s  wgmma %8.1f us %6.1f TFLOP/s  %s", c.name, c.start, c.len,
               c.window, 1e6 * slow, flops / slow * 1e-12, 1e6 * fast, flops / fast * 1e-12, same ? "same bits" : "OTHER BITS");
        if (!c.start) {
            a.pages.starts = NULL;
            a.k.data = x + c.heads * c.dim, a.v.data = x + (c.heads + c.kv_heads) * c.dim, a.k.token_stride = a.v.token_stride = cols;
            double peer = time_of(attention_wgmma_forward, &a, stream);
            printf("  training's %8.1f us %6.1f TFLOP/s", 1e6 * peer, flops / peer * 1e-12);
        }
        printf("\n");
        fflush(stdout);
        void *all[] = {k, v, x, o, o2, table, starts};
        for (void *p : all) cudaFree(p);
    }
    return 0;
}
