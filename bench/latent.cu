/* Decoding of latent attention on CUDA: attention_latent over the pages, and both products of heads (group_linear), each as a graph of 12
 * layers with their own caches and weights. Also prints the time of reading the cache, or the weight, at the speed of a copy measured in
 * the same run. Before that, compares results of the kernels, and bits of a row run alone, with others and in a chunk.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/latent bench/latent.cu \
 *       src/ops/attention/attention_latent.cu src/ops/attention/attention_cached.cu src/ops/products/group_linear.cu \
 *       src/device/cuda/gemm_plain.cu -Lbuild -lsg_ir -lsg_data -lsg_base && build/latent
 */
#include "device/cuda/gemm.h"
#include "device/cuda/vec_f16.cuh"
#include "ops/attention/attention_latent.h"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages.h"
#include "ops/products/group_linear.h"

#include <cuda_bf16.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

typedef __nv_bfloat16 bf16;

enum { LAYERS = 12, PAGE_LEN = 32, RUNS = 5, FILL_THREADS = 256, DIM = 576, RANK = 512, NOPE = 128 };

static void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

/* Definitions that the kernels' files need from the plugin. */
extern "C" {
extern const CudaKernelList cuda_kernels_attention_latent, cuda_kernels_group_linear;
extern const CudaKernelList cuda_kernels_qkv_norm_rope;
const CudaKernelList        cuda_kernels_qkv_norm_rope = {};
Status                      cuda_failed(cudaError_t error, const char *what, const char *, int)
{
    check(error, what);
    return ERR_DEVICE;
}
size_t cuda_shared_bytes(const CudaDevice *)
{
    return 227 << 10;
}
int cuda_sm(const CudaDevice *)
{
    return 90;
}
}
#define NOT_CALLED \
    { \
        return ERR_INTERNAL; \
    }
Status attention_simt_forward(const AttentionDims *, cudaStream_t)
NOT_CALLED
Status attention_pages_prefill(const AttentionDims *, cudaStream_t)
NOT_CALLED
bool attention_pages_turns(const AttentionDims *) NOT_CALLED Status
    attention_pages_decode(const AttentionDims *, const Heads *, const Heads *, const HeadTurns *, bool, void *, cudaStream_t)
NOT_CALLED

static __global__ void fill(bf16 *p, int64_t count, unsigned seed, float scale)
{
    int64_t step = (int64_t)gridDim.x * FILL_THREADS;
    for (int64_t i = (int64_t)blockIdx.x * FILL_THREADS + threadIdx.x; i < count; i += step) {
        unsigned h = (unsigned)i * 2654435761u + seed;
        h = (h ^ h >> 15) * 2246822519u;
        h ^= h >> 13;
        h *= 3266489917u;
        h ^= h >> 16;
        p[i] = __float2bfloat16_rn((float)(int)h * scale / 2147483648.0f);
    }
}

static bf16 *make(int64_t count, unsigned seed, float scale)
{
    bf16 *p;
    check(cudaMalloc(&p, count * sizeof(bf16)), "malloc");
    fill<<<1024, FILL_THREADS>>>(p, count, seed, scale);
    return p;
}

static TensorView view(void *data, DType dtype, int ndim, int64_t d0, int64_t d1, int64_t d2, int64_t d3)
{
    TensorView v = {};
    v.data = data;
    v.type.dtype = dtype, v.type.ndim = ndim;
    const int64_t dims[] = {d0, d1, d2, d3};
    for (int i = 0; i < ndim; i++) v.type.dim[i] = dims[i];
    return v;
}

/* Seconds of the fastest replay of a graph of `layers` launches, divided by `layers`. */
template <typename F> static double seconds(int layers, F launch)
{
    cudaStream_t    stream;
    cudaGraph_t     graph;
    cudaGraphExec_t replay;
    cudaEvent_t     from, to;
    float           best = 1e9f, ms;
    check(cudaStreamCreate(&stream), "stream");
    check(cudaEventCreate(&from), "event"), check(cudaEventCreate(&to), "event");
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
    for (int i = 0; i < layers; i++) launch(i, stream);
    check(cudaStreamEndCapture(stream, &graph), "capture");
    check(cudaGraphInstantiate(&replay, graph, 0), "instantiate");
    for (int i = 0; i < RUNS + 2; i++) {
        check(cudaEventRecord(from, stream), "record");
        check(cudaGraphLaunch(replay, stream), "launch");
        check(cudaEventRecord(to, stream), "record");
        check(cudaStreamSynchronize(stream), "run");
        check(cudaEventElapsedTime(&ms, from, to), "time");
        if (i >= 2 && ms < best) best = ms;
    }
    cudaGraphExecDestroy(replay), cudaGraphDestroy(graph), cudaStreamDestroy(stream);
    return best * 1e-3 / layers;
}

/* Attention over caches; rows have `room` positions. */
struct Latents {
    int                  rows, len, heads, room, row_pages;
    LatentAttrs          attrs;
    std::vector<bf16 *>  caches;
    bf16                *q, *k, *o;
    int32_t             *starts, *pages;
    void                *workspace;
    std::vector<int32_t> start;

    Latents(int rows_, int len_, int heads_, int room_, int layers, int32_t first_start, int spread)
        : rows(rows_), len(len_), heads(heads_), room(room_), row_pages(room_ / PAGE_LEN)
    {
        int64_t slots = latent_slots(rows, heads, attention_pages_tiles(0, room));
        attrs = {heads, DIM, RANK, 0.0722};
        for (int i = 0; i < layers; i++) caches.push_back(make((int64_t)(rows * row_pages + 1) * PAGE_LEN * DIM, 17 + i, 1.7f));
        q = make((int64_t)rows * len * heads * DIM, 5, 1.7f), k = make((int64_t)rows * len * DIM, 6, 1.7f);
        o = make((int64_t)rows * len * heads * RANK, 7, 0);
        check(cudaMalloc(&workspace, slots * heads * (RANK + 2) * 4 + 256), "malloc");
        std::vector<int32_t> page(rows * row_pages);
        for (int i = 0; i < rows * row_pages; i++) page[i] = 1 + (int)((int64_t)i * 7919 % (rows * row_pages));
        for (int b = 0; b < rows; b++) start.push_back(first_start - b * spread);
        check(cudaMalloc(&starts, rows * 4), "malloc"), check(cudaMalloc(&pages, page.size() * 4), "malloc");
        check(cudaMemcpy(pages, page.data(), page.size() * 4, cudaMemcpyHostToDevice), "copy");
        put_starts();
    }
    ~Latents()
    {
        for (bf16 *cache : caches) cudaFree(cache);
        void *all[] = {q, k, o, starts, pages, workspace};
        for (void *p : all) cudaFree(p);
    }
    void put_starts()
    {
        check(cudaMemcpy(starts, start.data(), rows * 4, cudaMemcpyHostToDevice), "copy");
    }
    /* Runs rows [row, row + count). */
    void run(int kernel, int layer, int row, int count, bool early, cudaStream_t stream)
    {
        TensorView in[5] = {view(q + (int64_t)row * len * heads * DIM, DT_BF16, 4, count, len, heads, DIM),
                            view(k + (int64_t)row * len * DIM, DT_BF16, 4, count, len, 1, DIM),
                            view(caches[layer], DT_BF16, 4, rows * row_pages + 1, PAGE_LEN, 1, DIM),
                            view(starts + row, DT_I32, 1, count, 0, 0, 0),
                            view(pages + row * row_pages, DT_I32, 2, count, row_pages, 0, 0)};
        TensorView out[2] = {view(o + (int64_t)row * len * heads * RANK, DT_BF16, 4, count, len, heads, RANK), in[2]};
        KernelArgs args = {};
        args.in = in, args.out = out, args.num_in = 5, args.num_out = 2, args.attrs = &attrs;
        args.workspace = workspace, args.stream = stream, args.early = early;
        args.constant = 1u << LATENT_STARTS | 1u << LATENT_PAGES;
        if (cuda_kernels_attention_latent.rows[kernel].run(&args) != OK) exit(1);
    }
    std::vector<bf16> result() const
    {
        std::vector<bf16> out((size_t)rows * len * heads * RANK);
        check(cudaDeviceSynchronize(), "run");
        check(cudaMemcpy(out.data(), o, out.size() * 2, cudaMemcpyDeviceToHost), "copy");
        return out;
    }
};

static double worst(const std::vector<bf16> &a, const std::vector<bf16> &b)
{
    double error = 0, sum = 0;
    for (size_t i = 0; i < a.size(); i++) {
        double x = __bfloat162float(a[i]), y = __bfloat162float(b[i]);
        error = x == x ? fmax(error, fabs(x - y)) : INFINITY, sum += y * y;
    }
    return error / sqrt(sum / a.size());
}

enum { MMA = 0, SIMT = 2 };

static void compare(int rows, int len, int heads, int start, int spread)
{
    Latents           all(rows, len, heads, 2112, 1, start, spread);
    std::vector<bf16> simt, mma, again;
    size_t            row = (size_t)len * heads * RANK, other = 0, chunk = 0;
    all.run(SIMT, 0, 0, rows, false, 0), simt = all.result();
    all.run(MMA, 0, 0, rows, false, 0), mma = all.result();
    for (int b = 0; b < rows; b++) {
        all.run(MMA, 0, b, 1, true, 0);
        again = all.result();
        other += memcmp(&again[b * row], &mma[b * row], row * 2) != 0;
    }
    int tokens = 0;
    if (len > 1) { /* some tokens of the first row, each run alone */
        Latents one(1, 1, heads, 2112, 1, 0, 0);
        std::swap(one.caches, all.caches);
        int32_t *pages = one.pages;
        one.pages = all.pages, one.rows = rows;
        for (int t = 0; t < len; t += 1 + len / 5, tokens++) {
            one.start[0] = start + t;
            check(cudaMemcpy(one.starts, one.start.data(), 4, cudaMemcpyHostToDevice), "copy");
            check(cudaMemcpy(one.q, all.q + (int64_t)t * heads * DIM, heads * DIM * 2, cudaMemcpyDeviceToDevice), "copy");
            check(cudaMemcpy(one.k, all.k + (int64_t)t * DIM, DIM * 2, cudaMemcpyDeviceToDevice), "copy");
            one.run(MMA, 0, 0, 1, true, 0);
            std::vector<bf16> alone((size_t)heads * RANK);
            check(cudaDeviceSynchronize(), "run");
            check(cudaMemcpy(alone.data(), one.o, alone.size() * 2, cudaMemcpyDeviceToHost), "copy");
            chunk += memcmp(alone.data(), &mma[(size_t)t * heads * RANK], alone.size() * 2) != 0;
        }
        one.rows = 1, one.pages = pages;
        std::swap(one.caches, all.caches);
    }
    printf("compare rows %3d len %3d heads %3d start %4d: mma to simt %.2e of rms; %zu of %d rows and %zu of %d tokens with other bits\n",
           rows, len, heads, start, worst(mma, simt), other, rows, chunk, tokens);
}

static double copy_rate()
{
    int64_t bytes = 1ll << 30;
    bf16   *from = make(bytes / 2, 1, 1), *to = make(bytes / 2, 2, 1);
    double  s = seconds(4, [&](int, cudaStream_t stream) { cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream); });
    cudaFree(from), cudaFree(to);
    return 2.0 * bytes / s;
}

static void time_attention(int rows, int len, int heads, int keys, int spread, double rate)
{
    Latents all(rows, len, heads, (keys + 63) / 32 * 32, len > 1 ? 2 : LAYERS, keys - len, spread);
    int     layers = (int)all.caches.size();
    double  read = 0, flops = 0;
    for (int b = 0; b < rows; b++) {
        double own = all.start[b] + len;
        read += own * DIM * 2, flops += 2.0 * heads * (DIM + RANK) * len * (own - (len - 1) / 2.0);
    }
    double mma = seconds(layers, [&](int i, cudaStream_t s) { all.run(MMA, i, 0, rows, true, s); });
    double simt = flops < 4e10 ? seconds(2, [&](int i, cudaStream_t s) { all.run(SIMT, i, 0, rows, false, s); }) : 0;
    printf("attention rows %3d len %4d heads %3d keys %6d: %8.2f us (simt %9.1f), copy %7.2f us: %3.0f %%, %4.0f TFLOP/s\n", rows, len,
           heads, keys, mma * 1e6, simt * 1e6, read / rate * 1e6, 100 * read / rate / mma, flops / mma * 1e-12);
}

/* Products of all heads; turned: x (m,H,NOPE) -> (m,H,RANK), else x (m,H,RANK) -> (m,H,NOPE). */
static void products(int rows, int heads, bool turned, double rate)
{
    std::vector<bf16 *> w;
    int64_t             in = turned ? NOPE : RANK, out = turned ? RANK : NOPE;
    bf16               *x = make((int64_t)rows * heads * in, 3, 1.7f), *y = make((int64_t)rows * heads * out, 4, 0);
    GroupLinearAttrs    attrs = {turned ? 0 : NOPE, NOPE, turned};
    for (int i = 0; i < LAYERS; i++) w.push_back(make((int64_t)heads * 2 * NOPE * RANK, 40 + i, 0.05f));
    auto run = [&](int kernel, int i, int first, int count, bool early, cudaStream_t stream) {
        TensorView two[2] = {view(x + first * heads * in, DT_BF16, 3, count, heads, in, 0),
                             view(w[i], DT_BF16, 2, heads * 2 * NOPE, RANK, 0, 0)};
        TensorView made = view(y + first * heads * out, DT_BF16, 3, count, heads, out, 0);
        KernelArgs args = {};
        args.in = two, args.out = &made, args.num_in = 2, args.num_out = 1, args.attrs = &attrs, args.stream = stream, args.early = early;
        args.constant = 2;
        if (cuda_kernels_group_linear.rows[kernel].run(&args) != OK) exit(1);
    };
    auto result = [&]() {
        std::vector<bf16> to((size_t)rows * heads * out);
        check(cudaDeviceSynchronize(), "run");
        check(cudaMemcpy(to.data(), y, to.size() * 2, cudaMemcpyDeviceToHost), "copy");
        return to;
    };
    run(2, 0, 0, rows, false, 0);
    std::vector<bf16> plain = result();
    run(0, 0, 0, rows, false, 0);
    std::vector<bf16> mma = result();
    run(0, 0, 0, 1, false, 0), run(0, 0, rows - 1, 1, false, 0);
    std::vector<bf16> alone = result();
    double            read = (double)heads * NOPE * RANK * 2, moved = read + 2.0 * rows * heads * (NOPE + RANK);
    double            s = seconds(LAYERS, [&](int i, cudaStream_t stream) { run(0, i, 0, rows, true, stream); });
    printf("products rows %4d heads %3d %-6s: to plain %.2e, alone %s; %8.2f us, copy %6.2f us: %3.0f %%, %4.0f TFLOP/s\n", rows, heads,
           turned ? "turned" : "", worst(mma, plain), memcmp(mma.data(), alone.data(), mma.size() * 2) ? "OTHER BITS" : "same bits",
           s * 1e6, moved / rate * 1e6, 100 * moved / rate / s, 2.0 * rows * read / 2 / s * 1e-12);
    for (bf16 *p : w) cudaFree(p);
    cudaFree(x), cudaFree(y);
}

int main()
{
    double rate = copy_rate();
    printf("a copy moves %.0f GB/s\n", rate * 1e-9);
    compare(1, 1, 16, 2000, 0), compare(3, 1, 16, 1999, 700), compare(9, 1, 16, 700, 60), compare(64, 1, 16, 1990, 31);
    compare(64, 1, 128, 1990, 31), compare(5, 1, 128, 1990, 400), compare(2, 1, 40, 600, 300);
    compare(1, 48, 16, 500, 0), compare(3, 70, 16, 300, 130), compare(1, 33, 128, 777, 0), compare(2, 130, 40, 64, 64);
    for (int heads = 16; heads <= 128; heads *= 8)
        for (int rows = 1; rows <= 64; rows *= 8) time_attention(rows, 1, heads, 2000, 0, rate);
    time_attention(64, 1, 16, 4000, 60, rate), time_attention(1, 1, 16, 32000, 0, rate), time_attention(8, 1, 16, 16000, 0, rate);
    for (int heads = 16; heads <= 128; heads *= 8) time_attention(1, 2048, heads, 2048, 0, rate);
    for (int heads = 16; heads <= 128; heads *= 8)
        for (int turned = 0; turned < 2; turned++)
            for (int rows : {1, 8, 64, 2048}) products(rows, heads, turned, rate);
    return 0;
}
