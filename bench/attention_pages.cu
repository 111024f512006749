/* Decoding's attention on CUDA: the kernels of a layer between its packed projections and its output projection (qkv_norm_rope, attention
 * over the pages). A CUDA graph runs 28 layers, each with its own cache. Also prints the time that reading the keys and values takes at 4.2
 * TB/s, and a hash of the results, to compare the bits of two builds.
 *
 *   nvcc -O3 -std=c++17 -gencode=arch=compute_90a,code=sm_90a -Isrc -Iinclude -o build/attention_pages bench/attention_pages.cu \
 *       src/ops/attention/attention_pages.cu src/ops/attention/attention_pages_f16.cu src/ops/attention/attention_pages_wgmma.cu \
 *       src/ops/attention/qkv_norm_rope.cu src/device/cuda/tensor_map.c -Lbuild -lsg_ir -lsg_data -lsg_base &&
 *   build/attention_pages [CASE] */
#include "bench.cuh"
#include "ops/attention/attention_mma.cuh"
#include "ops/attention/attention_pages.h"

#include <string.h>
#include <vector>

enum { LAYERS = 28, MOST_ROWS = 64, PAGE_LEN = 32, WARM = 3, RUNS = 10, TABLE_LEN = 8192 };

/* keys: number of keys of each row before its token. most: 0: every row has `keys`; else rows have from `keys` to `most` keys, and rows
 * with few keys are more frequent. */
static const struct {
    const char *name;
    int         heads, kv_heads, dim, window, keys, most, room, rows;
} cases[] = {
    {"0.6B 1 row", 16, 8, 128, 0, 576, 0, 640, 1},
    {"0.6B 8 rows", 16, 8, 128, 0, 576, 0, 640, 8},
    {"0.6B 32 rows", 16, 8, 128, 0, 576, 0, 640, 32},
    {"0.6B 64 rows", 16, 8, 128, 0, 576, 0, 640, 64},
    {"0.6B 64 rows, room of 8,192", 16, 8, 128, 0, 576, 0, 8192, 64},
    {"0.6B 64 rows, 16 to 4,096 keys", 16, 8, 128, 0, 16, 4096, 4096, 64},
    {"0.6B 1 row, 7,000 keys", 16, 8, 128, 0, 7000, 0, 8192, 1},
    {"Gemma-3-1B 1 row", 4, 1, 256, 512, 576, 0, 640, 1},
    {"Llama-3.2-1B 64 rows", 32, 8, 64, 0, 576, 0, 640, 64},
    {"8B 8 rows", 32, 8, 128, 0, 576, 0, 640, 8},
};

extern "C" const CudaKernelList cuda_kernels_qkv_norm_rope;

struct Bench {
    int                  b, heads, kv_heads, dim, row_pages, num_pages;
    std::vector<int32_t> keys;
    bf16                *x, *packed, *o, *k, *v, *wq, *wk;
    float               *table;
    int32_t             *starts, *pages;
    void                *workspace;
    AttentionDims        a;
    QkvAttrs             qkv;
};

template <typename T> static T *take(size_t count)
{
    T *p;
    check(cudaMalloc(&p, count * sizeof(T)), "memory");
    check(cudaMemset(p, 0, count * sizeof(T)), "memory");
    return p;
}

static TensorView view(void *data, DType dtype, int ndim, int64_t d0, int64_t d1 = 1, int64_t d2 = 1)
{
    TensorView v = {};
    v.data = data, v.type.dtype = dtype, v.type.ndim = ndim;
    v.type.dim[0] = d0, v.type.dim[1] = d1, v.type.dim[2] = d2;
    return v;
}

static void layer(const Bench *t, int at, bool rope, bool attention, bool one, cudaStream_t stream)
{
    int     cols = (t->heads + 2 * t->kv_heads) * t->dim;
    int64_t cells = (int64_t)t->num_pages * PAGE_LEN * t->kv_heads * t->dim;
    bf16   *x = t->x + (int64_t)at * t->b * cols, *packed = rope ? t->packed : x;
    if (rope) {
        KernelArgs args = {};
        TensorView in[] = {view(x, DT_BF16, 3, t->b, 1, cols), view(t->wq, DT_BF16, 1, t->dim), view(t->wk, DT_BF16, 1, t->dim),
                           view(t->table, DT_F32, 2, TABLE_LEN, t->dim), view(t->starts, DT_I32, 2, t->b, 1)};
        TensorView out[] = {view(packed, DT_BF16, 3, t->b, 1, cols), view(NULL, DT_F32, 3, t->b, 1, t->heads + t->kv_heads)};
        args.in = in, args.out = out, args.num_in = 5, args.num_out = 2, args.attrs = &t->qkv, args.stream = stream, args.early = true,
        args.constant = 0x1e;
        if (cuda_kernels_qkv_norm_rope.rows[0].run(&args) != OK) exit(1);
    }
    if (!attention) return;
    AttentionDims a = t->a;
    Heads         q = {packed, cols, cols}, k = {packed + t->heads * t->dim, cols, cols},
          v = {packed + (t->heads + t->kv_heads) * t->dim, cols, cols};
    a.q = q;
    a.k.data = t->k + at * cells, a.v.data = t->v + at * cells;
    a.o.data = t->o + (int64_t)at * t->b * t->heads * t->dim;
    HeadTurns none = {}, turns = {t->wq, t->wk, t->table, t->starts, TABLE_LEN, (float)t->qkv.eps, 0};
    if (attention_pages_decode(&a, &k, &v, one ? &turns : &none, true, t->workspace, stream) != OK) exit(1);
}

static double time_all(const Bench *t, bool rope, bool attention, bool one, cudaStream_t stream)
{
    auto launch = [&] {
        for (int i = 0; i < LAYERS; i++) layer(t, i, rope, attention, one, stream);
    };
    return time_graph(launch, WARM, RUNS, stream) / LAYERS;
}

static uint64_t hash_of(const void *device, size_t bytes)
{
    std::vector<uint64_t> words(bytes / 8);
    uint64_t              h = 14695981039346656037u;
    check(cudaMemcpy(words.data(), device, bytes / 8 * 8, cudaMemcpyDeviceToHost), "copy");
    for (uint64_t w : words) h = (h ^ w) * 1099511628211u;
    return h;
}

int main(int argc, char **argv)
{
    cudaStream_t stream;
    check(cudaStreamCreate(&stream), "stream");
    for (auto &c : cases) {
        Bench  t = {c.rows, c.heads, c.kv_heads, c.dim};
        double bytes = 0;
        int    cols = (c.heads + 2 * c.kv_heads) * c.dim;
        if (argc > 1 && !strstr(c.name, argv[1])) continue;
        t.row_pages = c.room / PAGE_LEN;
        for (int b = 0; b < c.rows; b++) {
            double part = c.rows > 1 ? (double)(b * 29 % c.rows) / (c.rows - 1) : 0;
            int    keys = c.most ? (int)(c.keys * pow((double)c.most / c.keys, part * part)) - 1 : c.keys;
            int    read = c.window && c.window < keys ? c.window : keys;
            t.keys.push_back(keys);
            bytes += 4.0 * read * c.kv_heads * c.dim;
        }
        std::vector<int32_t> pages((size_t)c.rows * t.row_pages);
        int                  used = 1; /* page 0 belongs to no row */
        for (int i = 0; i < c.room / PAGE_LEN; i++)
            for (int b = 0; b < c.rows; b++)
                if (i * PAGE_LEN <= t.keys[b]) pages[(size_t)b * t.row_pages + i] = used++;
        t.num_pages = used;
        int64_t cells = (int64_t)used * PAGE_LEN * c.kv_heads * c.dim, outs = (int64_t)LAYERS * c.rows * c.heads * c.dim;
        t.x = take<bf16>((size_t)LAYERS * c.rows * cols), t.packed = take<bf16>((size_t)c.rows * cols), t.o = take<bf16>(outs);
        t.k = take<bf16>(LAYERS * cells), t.v = take<bf16>(LAYERS * cells);
        t.wq = take<bf16>(c.dim), t.wk = take<bf16>(c.dim), t.table = take<float>((size_t)TABLE_LEN * c.dim);
        t.starts = take<int32_t>(c.rows), t.pages = take<int32_t>(pages.size());
        fill<<<1024, FILL_THREADS>>>(t.x, (int64_t)LAYERS * c.rows * cols, 1);
        fill<<<1024, FILL_THREADS>>>(t.k, LAYERS * cells, 2);
        fill<<<1024, FILL_THREADS>>>(t.v, LAYERS * cells, 3);
        fill<<<1, FILL_THREADS>>>(t.wq, c.dim, 4);
        fill<<<1, FILL_THREADS>>>(t.wk, c.dim, 5);
        std::vector<float> table((size_t)TABLE_LEN * c.dim);
        for (int p = 0; p < TABLE_LEN; p++)
            for (int i = 0; i < c.dim / 2; i++) {
                double angle = p * pow(1e6, -2.0 * i / c.dim);
                table[(size_t)p * c.dim + i] = (float)cos(angle), table[(size_t)p * c.dim + c.dim / 2 + i] = (float)sin(angle);
            }
        check(cudaMemcpy(t.table, table.data(), table.size() * 4, cudaMemcpyHostToDevice), "copy");
        check(cudaMemcpy(t.starts, t.keys.data(), c.rows * 4, cudaMemcpyHostToDevice), "copy");
        check(cudaMemcpy(t.pages, pages.data(), pages.size() * 4, cudaMemcpyHostToDevice), "copy");
        AttentionAttrs attrs = {};
        attrs.num_heads = c.heads, attrs.num_kv_heads = c.kv_heads, attrs.head_dim = c.dim, attrs.window = c.window;
        TensorType q = view(NULL, DT_BF16, 3, c.rows, 1, cols).type;
        t.a = attention_dims(&attrs, &q, NULL);
        Heads cache = {NULL, (int64_t)PAGE_LEN * c.kv_heads * c.dim, (int64_t)c.kv_heads * c.dim};
        Heads o = {NULL, (int64_t)c.heads * c.dim, (int64_t)c.heads * c.dim};
        t.a.k = t.a.v = cache, t.a.o = o;
        t.a.pages.starts = t.starts, t.a.pages.table = t.pages;
        t.a.pages.row_pages = t.row_pages, t.a.pages.page_len = PAGE_LEN, t.a.pages.num_pages = used;
        t.workspace = take<char>(attention_pages_bytes(c.rows, c.heads, c.dim, attention_pages_tiles(c.window, c.room)));
        t.qkv.num_heads = c.heads, t.qkv.num_kv_heads = c.kv_heads, t.qkv.head_dim = c.dim, t.qkv.eps = 1e-6;
        check(cudaDeviceSynchronize(), "fill");
        double   apart = time_all(&t, true, true, false, stream);
        uint64_t bits = hash_of(t.o, outs * 2) ^ hash_of(t.k, cells * 2) ^ hash_of(t.v, cells * 2);
        check(cudaMemset(t.o, 0, outs * 2), "memory");
        double   one = time_all(&t, false, true, true, stream);
        uint64_t same = hash_of(t.o, outs * 2) ^ hash_of(t.k, cells * 2) ^ hash_of(t.v, cells * 2);
        printf("%-32s in one %7.2f us, apart %7.2f (qkv_norm_rope %5.2f, attention %7.2f), limit %7.2f  bits %016llx%s\n", c.name, one,
               apart, time_all(&t, true, false, false, stream), time_all(&t, false, true, false, stream), bytes / 4.2e6,
               (unsigned long long)bits, bits == same ? "" : " IN ONE DIFFER");
        fflush(stdout);
        void *all[] = {t.x, t.packed, t.o, t.k, t.v, t.wq, t.wk, t.table, t.starts, t.pages, t.workspace};
        for (void *p : all) cudaFree(p);
    }
    return 0;
}
