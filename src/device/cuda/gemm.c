/* cuBLASLt uses column-major matrices. Our row-major c = op(a) op(b) is its c^T = op(b)^T op(a)^T, so b is passed first. We never ask
 * for algorithms that reduce with atomics. The cache on disk is a text file for each GPU and library version, with a line for each
 * shape. */
#include "device/cuda/gemm.h"

#include "base/log.h"
#include "comm/comm.h"
#include "device/cuda/cuda.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    MAX_ALGOS = 16,
    KEY_BYTES = 160,
    ALGO_WORDS = sizeof(cublasLtMatmulAlgo_t) / sizeof(uint64_t),
    ALIGN = 16, /* bytes; greater alignment is of no use */
    FIRST_WITH_BLOCKS = 120900,
    FIRST_WITH_FP4 = 120800,
    FP4_ALONG = 2 * ALIGN, /* FP4 codes in whole 16 bytes */
    FACTOR_BYTES = 256     /* bytes at the start of the workspace of FP4 products, for the results of cuda_gemm_factors */
};

/* Milliseconds: products at least this long are timed under load; how long the load runs. */
#define LEAST_LOAD_MS 0.7f
#define LOAD_MS 10.0f

typedef struct GemmPlan {
    char                   key[KEY_BYTES];
    bool                   supported, chosen; /* chosen: the algorithm was measured, now or earlier */
    cublasLtMatmulDesc_t   desc;
    cublasLtMatrixLayout_t a, b, c; /* in our order, not the library's */
    cublasLtMatmulAlgo_t   algo;
    float                  microseconds;
} GemmPlan;

typedef struct KnownAlgo {
    char     key[KEY_BYTES];
    uint64_t words[ALGO_WORDS];
    float    microseconds;
} KnownAlgo;

struct CudaGemmCache {
    GemmPlan  *plans;
    int        num_plans, cap_plans;
    KnownAlgo *known;
    int        num_known, cap_known;
    bool       changed;
};

#define BLAS_TRY(lib, expr) \
    do { \
        cublasStatus_t blas_status_ = (lib)->expr; \
        if (blas_status_ != CUBLAS_STATUS_SUCCESS) FAIL(ERR_DEVICE, "cuBLASLt: status %d from %s", (int)blas_status_, #expr); \
    } while (0)

static cudaDataType_t type_of(DType dtype)
{
    if (dtype == DT_E2M1) return CUDA_R_4F_E2M1;
    if (dtype == DT_F16) return CUDA_R_16F;
    return dtype == DT_BF16 ? CUDA_R_16BF : dtype == DT_E4M3 ? CUDA_R_8F_E4M3 : dtype == DT_E5M2 ? CUDA_R_8F_E5M2 : CUDA_R_32F;
}

static bool is_fp8(const GemmOperand *x)
{
    return DT_SET(x->dtype) & DT_SET_FP8;
}

static bool is_fp4(const Gemm *g)
{
    return g->a.dtype == DT_E2M1 || g->b.dtype == DT_E2M1;
}

static uint32_t alignment_of(const GemmOperand *x)
{
    uint64_t bytes = ((uintptr_t)x->data + (uint64_t)(dtype_bytes(x->dtype, x->offset))) | ALIGN;
    return (uint32_t)(bytes & (~bytes + 1));
}

/* 1: a bias as the library accepts it: in bf16 if operands are FP8 or FP4, else in c's dtype; 2: any other bias; 0: no bias. */
static int bias_kind(const Gemm *g)
{
    DType dtype = is_fp8(&g->a) || is_fp8(&g->b) || is_fp4(g) ? DT_BF16 : g->c.dtype;
    if (g->epilogue != GEMM_BIAS) return 0;
    return g->bias.dtype == dtype && alignment_of(&g->bias) == ALIGN ? 1 : 2;
}

/* Whether FP8 operands fit. On sm_90 FP8 is only multiplied along stored rows of both operands, and cuBLASLt requires dims and scales in
 * whole 16 bytes. */
static bool fp8_fits(const Gemm *g)
{
    bool along_k = !g->a.trans && g->b.trans && g->a.stride % ALIGN == 0 && g->b.stride % ALIGN == 0;
    bool aligned = ((uintptr_t)g->a.scale | (uintptr_t)g->b.scale) % ALIGN == 0;
    bool formats = is_fp8(&g->a) && is_fp8(&g->b) && (g->a.dtype == DT_E4M3 || g->b.dtype == DT_E4M3);
    return formats && along_k && aligned && g->n % ALIGN == 0 && g->k % ALIGN == 0;
}

static bool has_blocks(const Gemm *g)
{
    return g->a.scaling != GEMM_SCALE_WHOLE || g->b.scaling != GEMM_SCALE_WHOLE;
}

bool cuda_gemm_has_blocks(const CudaDevice *device)
{
    return device->sm == 90 && device->lib.cublas_version >= FIRST_WITH_BLOCKS;
}

/* Whether scales of blocks fit: rows of a are a multiple of 4, and rows of b's scales whole 16 bytes. True without such scales. */
static bool blocks_fit(const CudaDevice *device, const Gemm *g)
{
    bool scaled = g->a.scaling == GEMM_SCALE_ROWS && g->b.scaling == GEMM_SCALE_TILES && fp8_fits(g);
    return !has_blocks(g) ||
           (scaled && cuda_gemm_has_blocks(device) && g->m % 4 == 0 && g->a.scale_stride == g->m && g->b.scale_stride % 4 == 0);
}

bool cuda_gemm_has_fp4(const CudaDevice *device)
{
    return device->sm >= 100 && device->lib.cublas_version >= FIRST_WITH_FP4;
}

/* Whether FP4 operands fit. FP4 is only multiplied along stored rows of both operands; rows of a, b and c must be whole 16 bytes. */
static bool fp4_fits(const CudaDevice *device, const Gemm *g)
{
    bool along_k = !g->a.trans && g->b.trans && g->a.stride % FP4_ALONG == 0 && g->b.stride % FP4_ALONG == 0 && g->k % FP4_ALONG == 0;
    bool aligned = ((uintptr_t)g->a.blocks | (uintptr_t)g->b.blocks) % ALIGN == 0 && alignment_of(&g->a) == ALIGN &&
                   alignment_of(&g->b) == ALIGN && alignment_of(&g->c) == ALIGN;
    return g->a.dtype == DT_E2M1 && g->b.dtype == DT_E2M1 && along_k && aligned && g->n % ALIGN == 0 && cuda_gemm_has_fp4(device);
}

static size_t workspace_of(const Gemm *g)
{
    return GPU_GEMM_WORKSPACE - (is_fp4(g) ? FACTOR_BYTES : 0);
}

static void key_of(const Gemm *g, char out[KEY_BYTES])
{
    int n = snprintf(out, KEY_BYTES, "%lld,%lld,%lld,%c%c,%d,%d%d%d,%d,%lld,%lld,%lld,%u,%u,%u", (long long)g->m, (long long)g->n,
                     (long long)g->k, g->a.trans ? 't' : 'n', g->b.trans ? 't' : 'n', g->accumulate, g->a.dtype, g->b.dtype, g->c.dtype,
                     bias_kind(g), (long long)g->a.stride, (long long)g->b.stride, (long long)g->c.stride, alignment_of(&g->a),
                     alignment_of(&g->b), alignment_of(&g->c));
    if (is_fp8(&g->a) || is_fp8(&g->b)) n += snprintf(out + n, (size_t)(KEY_BYTES - n), ",f%d%d", fp8_fits(g), g->fast);
    if (is_fp4(g)) n += snprintf(out + n, (size_t)(KEY_BYTES - n), ",4%d", ((uintptr_t)g->a.blocks | (uintptr_t)g->b.blocks) % ALIGN == 0);
    if (has_blocks(g)) n += snprintf(out + n, (size_t)(KEY_BYTES - n), ",b%d%d", g->a.scaling, g->b.scaling);
    if (g->rows_alone) snprintf(out + n, (size_t)(KEY_BYTES - n), ",r");
}

/* ---- the cache on disk ---- */

static bool cache_path(const CudaDevice *device, char out[PATH_MAX])
{
    const char *base = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char        gpu[64];
    int         n;
    for (size_t i = 0; i < sizeof gpu; i++) gpu[i] = device->name[i] == ' ' || device->name[i] == '/' ? '-' : device->name[i];
    if (base && base[0])
        n = snprintf(out, PATH_MAX - 128, "%s/surogate", base);
    else if (home && home[0])
        n = snprintf(out, PATH_MAX - 128, "%s/.cache/surogate", home);
    else
        return false;
    if (n < 0 || n >= PATH_MAX - 128) return false;
    for (char *p = out + 1; *p; p++) /* creates the folders */
        if (*p == '/') *p = 0, mkdir(out, 0755), *p = '/';
    mkdir(out, 0755);
    snprintf(out + n, 128, "/gemm-%.63s-cublaslt-%zu.txt", gpu, device->lib.cublas_version);
    return true;
}

static KnownAlgo *find_known(CudaGemmCache *cache, const char *key)
{
    for (int i = 0; i < cache->num_known; i++)
        if (strcmp(cache->known[i].key, key) == 0) return &cache->known[i];
    return NULL;
}

static KnownAlgo *add_known(CudaGemmCache *cache, const char *key)
{
    KnownAlgo *known = find_known(cache, key);
    if (known) return known;
    if (cache->num_known == cache->cap_known) {
        cache->cap_known = cache->cap_known ? 2 * cache->cap_known : 64;
        cache->known = realloc(cache->known, (size_t)cache->cap_known * sizeof *cache->known);
        if (!cache->known) fatal_out_of_memory(0);
    }
    known = &cache->known[cache->num_known++];
    memset(known, 0, sizeof *known);
    snprintf(known->key, sizeof known->key, "%s", key);
    return known;
}

/* Parses a line: key, microseconds, words of the algorithm. Skips malformed lines. */
static void parse_line(CudaGemmCache *cache, const char *line)
{
    KnownAlgo parsed = {0};
    int       at = 0, n;
    if (line[0] == '#' || sscanf(line, "%159s %f%n", parsed.key, &parsed.microseconds, &at) != 2) return;
    for (size_t i = 0; i < ALGO_WORDS; i++, at += n) {
        unsigned long long word;
        if (sscanf(line + at, " %llx%n", &word, &n) != 1) return;
        parsed.words[i] = word;
    }
    *add_known(cache, parsed.key) = parsed;
}

static void parse_text(CudaGemmCache *cache, const char *text)
{
    char line[512];
    while (*text) {
        size_t len = strcspn(text, "\n");
        snprintf(line, sizeof line, "%.*s", (int)(len < sizeof line ? len : sizeof line - 1), text);
        parse_line(cache, line);
        text += len + (text[len] == '\n');
    }
}

static CudaGemmCache *cache_of(CudaDevice *device)
{
    if (device->gemm) return device->gemm;
    CudaGemmCache *cache = device->gemm = calloc(1, sizeof *cache);
    if (!cache) fatal_out_of_memory(sizeof *cache);
    char  path[PATH_MAX], line[512];
    FILE *file = cache_path(device, path) ? fopen(path, "r") : NULL;
    while (file && fgets(line, sizeof line, file)) parse_line(cache, line);
    if (file) fclose(file);
    return cache;
}

static int known_text(const KnownAlgo *known, char *out, size_t size)
{
    int n = snprintf(out, size, "%s %.2f", known->key, (double)known->microseconds);
    for (size_t i = 0; i < ALGO_WORDS && n > 0 && (size_t)n < size; i++)
        n += snprintf(out + n, size - (size_t)n, " %llx", (unsigned long long)known->words[i]);
    if (n > 0 && (size_t)n < size) n += snprintf(out + n, size - (size_t)n, "\n");
    return n;
}

void cuda_gemm_save(CudaDevice *device)
{
    CudaGemmCache *cache = device->gemm;
    char           path[PATH_MAX], temporary[PATH_MAX + 32], line[512];
    if (!cache || !cache->changed || !cache_path(device, path)) return;
    snprintf(temporary, sizeof temporary, "%s.%d.%d", path, (int)getpid(), device->index);
    FILE *file = fopen(temporary, "w");
    if (!file) return; /* without a cache the next start just measures again */
    fprintf(file, "# m,n,k,transposes,accumulate,dtypes,bias,strides,alignments[,FP8][,FP4]  microseconds  algorithm\n");
    for (int i = 0; i < cache->num_known; i++) {
        known_text(&cache->known[i], line, sizeof line);
        fputs(line, file);
    }
    bool written = fclose(file) == 0;
    if (!written || rename(temporary, path) != 0) unlink(temporary);
    cache->changed = false;
}

void cuda_gemm_export(CudaDevice *device, char *out, size_t size)
{
    CudaGemmCache *cache = cache_of(device);
    int            n = snprintf(out, size, "# cublaslt %zu on %s\n", device->lib.cublas_version, device->name);
    size_t         used = n > 0 && (size_t)n < size ? (size_t)n : 0;
    for (int i = 0; i < cache->num_plans; i++) {
        const KnownAlgo *known = cache->plans[i].chosen ? find_known(cache, cache->plans[i].key) : NULL;
        n = known ? known_text(known, out + used, size - used) : 0;
        if (n > 0 && (size_t)n < size - used) used += (size_t)n;
    }
}

void cuda_gemm_import(CudaDevice *device, const char *text)
{
    char head[128];
    snprintf(head, sizeof head, "# cublaslt %zu on %s\n", device->lib.cublas_version, device->name);
    if (strncmp(text, head, strlen(head)) == 0) parse_text(cache_of(device), text);
}

Status cuda_gemm_share(CudaDevice *device, Comm *comm)
{
    CudaGemmCache *cache = cache_of(device);
    int            count = cache->num_known;
    TRY(comm_broadcast(comm, 0, &count, sizeof count));
    KnownAlgo *all = calloc((size_t)count + 1, sizeof *all);
    if (!all) fatal_out_of_memory((size_t)count * sizeof *all);
    if (comm_rank(comm) == 0 && count) memcpy(all, cache->known, (size_t)count * sizeof *all);
    Status status = comm_broadcast(comm, 0, all, (size_t)count * sizeof *all);
    if (status == OK && comm_rank(comm) > 0) {
        cache->num_known = 0;
        for (int i = 0; i < count; i++) *add_known(cache, all[i].key) = all[i];
    }
    free(all);
    return status;
}

/* ---- plans ---- */

static Status make_layout(const CudaLibraries *lib, DType dtype, int64_t rows, int64_t cols, int64_t stride, cublasLtMatrixLayout_t *out)
{
    /* row-major (rows, cols) is column-major (cols, rows) */
    BLAS_TRY(lib, cublasLtMatrixLayoutCreate(out, type_of(dtype), (uint64_t)cols, (uint64_t)rows, stride));
    return OK;
}

static Status set_desc(const CudaLibraries *lib, cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t attribute, const void *value,
                       size_t size)
{
    BLAS_TRY(lib, cublasLtMatmulDescSetAttribute(desc, attribute, value, size));
    return OK;
}

/* Sets the formats of scales. Algorithms are chosen before the scales' addresses are known, but the library may require pointers: it
 * gets dummies, which it never reads. */
static Status set_blocks(const CudaLibraries *lib, cublasLtMatmulDesc_t desc, cublasLtMatmulMatrixScale_t of_b,
                         cublasLtMatmulMatrixScale_t of_a)
{
    uintptr_t aligned = 256;
    TRY(set_desc(lib, desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &of_b, sizeof of_b));
    TRY(set_desc(lib, desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &of_a, sizeof of_a));
    TRY(set_desc(lib, desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &aligned, sizeof aligned));
    return set_desc(lib, desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &aligned, sizeof aligned);
}

/* Sets scales of blocks for FP4. Each operand's scale as a whole becomes part of alpha, which is read from device memory. */
static Status set_fp4(const CudaLibraries *lib, cublasLtMatmulDesc_t desc)
{
    cublasLtPointerMode_t mode = CUBLASLT_POINTER_MODE_DEVICE;
    TRY(set_desc(lib, desc, CUBLASLT_MATMUL_DESC_POINTER_MODE, &mode, sizeof mode));
    return set_blocks(lib, desc, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3, CUBLASLT_MATMUL_MATRIX_SCALE_VEC16_UE4M3);
}

static Status make_descriptors(const CudaLibraries *lib, const Gemm *g, GemmPlan *plan)
{
    cublasOperation_t first = g->b.trans ? CUBLAS_OP_T : CUBLAS_OP_N, second = g->a.trans ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_TRY(lib, cublasLtMatmulDescCreate(&plan->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_TRANSA, &first, sizeof first));
    TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_TRANSB, &second, sizeof second));
    if (is_fp8(&g->a) && g->fast) {
        int8_t fast = 1;
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast, sizeof fast));
    }
    if (has_blocks(g))
        TRY(set_blocks(lib, plan->desc, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F));
    if (is_fp4(g)) TRY(set_fp4(lib, plan->desc));
    if (g->epilogue == GEMM_BIAS) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        cudaDataType_t     type = type_of(g->bias.dtype);
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof type));
    }
    TRY(make_layout(lib, g->a.dtype, g->a.trans ? g->k : g->m, g->a.trans ? g->m : g->k, g->a.stride, &plan->a));
    TRY(make_layout(lib, g->b.dtype, g->b.trans ? g->n : g->k, g->b.trans ? g->k : g->n, g->b.stride, &plan->b));
    return make_layout(lib, g->c.dtype, g->m, g->n, g->c.stride, &plan->c);
}

static int find_algos(const CudaLibraries *lib, const Gemm *g, const GemmPlan *plan, cublasLtMatmulHeuristicResult_t *out)
{
    cublasLtMatmulPreference_t preference;
    size_t                     workspace = workspace_of(g);
    /* With rows_alone the sum along k must be one chain, which has the same bits for any m. Else partial sums may be put in the
     * workspace, in fp32. */
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE | (g->rows_alone ? 0 : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    uint32_t align_a = alignment_of(&g->a), align_b = alignment_of(&g->b);
    uint32_t align_c = alignment_of(&g->c);
    int      count = 0;
    if (lib->cublasLtMatmulPreferenceCreate(&preference) != CUBLAS_STATUS_SUCCESS) return 0;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void                          *value;
        size_t                               size;
    } settings[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align_b, sizeof align_b},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align_a, sizeof align_a},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align_c, sizeof align_c},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align_c, sizeof align_c},
    };
    for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
        lib->cublasLtMatmulPreferenceSetAttribute(preference, settings[i].attribute, settings[i].value, settings[i].size);
    cublasStatus_t status =
        lib->cublasLtMatmulAlgoGetHeuristic(lib->blas, plan->desc, plan->b, plan->a, plan->c, plan->c, preference, MAX_ALGOS, out, &count);
    lib->cublasLtMatmulPreferenceDestroy(preference);
    return status == CUBLAS_STATUS_SUCCESS ? count : 0;
}

/* Whether a row has the same bits for any m and n. fp32 products don't: their order of sums varies. Nor do bf16 or f16 products if rows
 * don't start at multiples of 16 bytes, as the order then depends on m and n. */
static bool is_one_chain(const Gemm *g)
{
    return g->a.dtype == DT_BF16 || g->a.dtype == DT_F16 ? g->k % (ALIGN / 2) == 0 : g->a.dtype != DT_F32;
}

static bool dtypes_fit(const CudaDevice *device, const Gemm *g)
{
    bool narrow = fp8_fits(g) || fp4_fits(device, g), same = g->a.dtype == g->b.dtype && (g->c.dtype == g->a.dtype || g->c.dtype == DT_F32);
    bool plain = bias_kind(g) != 2, is_chain = !g->rows_alone || is_one_chain(g);
    return is_chain && (narrow || (same && !is_fp8(&g->a) && !is_fp4(g) && !g->a.scale && !g->b.scale)) && plain && g->m > 0 && g->n > 0 &&
           g->k > 0;
}

/* Takes over a known algorithm. It is checked against this shape, as the file may be old or edited. */
static bool take_known(const CudaLibraries *lib, CudaGemmCache *cache, const Gemm *g, GemmPlan *plan)
{
    const KnownAlgo                *known = find_known(cache, plan->key);
    cublasLtMatmulHeuristicResult_t result;
    if (!known) return false;
    cublasLtMatmulAlgo_t algo;
    memcpy(&algo, known->words, sizeof algo);
    cublasStatus_t status = lib->cublasLtMatmulAlgoCheck(lib->blas, plan->desc, plan->b, plan->a, plan->c, plan->c, &algo, &result);
    if (status != CUBLAS_STATUS_SUCCESS || result.workspaceSize > workspace_of(g)) return false;
    plan->algo = algo;
    plan->microseconds = known->microseconds;
    plan->chosen = true;
    return true;
}

static GemmPlan *plan_of(CudaDevice *device, const Gemm *g)
{
    CudaGemmCache       *cache = cache_of(device);
    const CudaLibraries *lib = &device->lib;
    char                 key[KEY_BYTES];
    key_of(g, key);
    for (int i = 0; i < cache->num_plans; i++)
        if (strcmp(cache->plans[i].key, key) == 0) return &cache->plans[i];
    if (cache->num_plans == cache->cap_plans) {
        cache->cap_plans = cache->cap_plans ? 2 * cache->cap_plans : 64;
        cache->plans = realloc(cache->plans, (size_t)cache->cap_plans * sizeof *cache->plans);
        if (!cache->plans) fatal_out_of_memory(0);
    }
    GemmPlan *plan = &cache->plans[cache->num_plans++];
    memset(plan, 0, sizeof *plan);
    memcpy(plan->key, key, sizeof key);
    if (!dtypes_fit(device, g) || !blocks_fit(device, g) || make_descriptors(lib, g, plan) != OK) return plan;
    cublasLtMatmulHeuristicResult_t results[MAX_ALGOS];
    plan->supported = find_algos(lib, g, plan, results) > 0;
    if (!plan->supported && (has_blocks(g) || is_fp4(g)))
        log_info("cuBLASLt: no algorithm for the product %s: our own, slow kernel is used", key);
    if (plan->supported) plan->algo = results[0].algo;
    if (plan->supported) take_known(lib, cache, g, plan);
    return plan;
}

bool cuda_gemm_supported(CudaDevice *device, const Gemm *g)
{
    return plan_of(device, g)->supported;
}

static void *first_of(const GemmOperand *x)
{
    return (char *)x->data + dtype_bytes(x->dtype, x->offset);
}

static Status multiply(CudaDevice *device, const Gemm *g, GemmPlan *plan, const cublasLtMatmulAlgo_t *algo, void *workspace,
                       size_t workspace_bytes, cudaStream_t stream)
{
    const CudaLibraries *lib = &device->lib;
    float                beta = g->accumulate ? 1.0f : 0.0f;
    void                *c = first_of(&g->c);
    void                *bias = first_of(&g->bias);
    if (g->epilogue == GEMM_BIAS) TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &bias, sizeof bias));
    if (is_fp8(&g->a)) {
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b.scale, sizeof g->b.scale));
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a.scale, sizeof g->a.scale));
    }
    const float *alpha_at = &g->alpha, *beta_at = &beta;
    if (is_fp4(g)) {
        float *factors = workspace;
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->b.blocks, sizeof g->b.blocks));
        TRY(set_desc(lib, plan->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->a.blocks, sizeof g->a.blocks));
        TRY(cuda_gemm_factors(g, factors, stream));
        alpha_at = factors;
        beta_at = factors + 1;
        workspace = (char *)workspace + FACTOR_BYTES;
        workspace_bytes -= FACTOR_BYTES;
    }
    BLAS_TRY(lib, cublasLtMatmul(lib->blas, plan->desc, alpha_at, first_of(&g->b), plan->b, first_of(&g->a), plan->a, beta_at, c, plan->c,
                                 c, plan->c, algo, workspace, workspace_bytes, stream));
    return OK;
}

Status cuda_gemm_run(CudaDevice *device, const Gemm *g, void *workspace, size_t workspace_bytes, void *stream)
{
    if (!g->m || !g->n) return OK;
    GemmPlan *plan = plan_of(device, g);
    if (!plan->supported) return cuda_gemm_plain(g, stream);
    return multiply(device, g, plan, &plan->algo, workspace, workspace_bytes, (cudaStream_t)stream);
}

/* ---- measuring ---- */

typedef struct Timing {
    const Gemm *gemm;
    GemmPlan   *plan;
    void       *workspace;
    size_t      workspace_bytes;
    cudaEvent_t events[2];
} Timing;

/* *out_ms: milliseconds of one product. */
static Status time_runs(CudaDevice *device, const Timing *t, const cublasLtMatmulAlgo_t *algo, int repeats, float *out_ms)
{
    CUDA_TRY(cudaEventRecord(t->events[0], device->stream));
    for (int i = 0; i < repeats; i++) TRY(multiply(device, t->gemm, t->plan, algo, t->workspace, t->workspace_bytes, device->stream));
    CUDA_TRY(cudaEventRecord(t->events[1], device->stream));
    CUDA_TRY(cudaEventSynchronize(t->events[1]));
    CUDA_TRY(cudaEventElapsedTime(out_ms, t->events[0], t->events[1]));
    *out_ms /= (float)repeats;
    return OK;
}

static Status time_algo(CudaDevice *device, const Timing *t, const cublasLtMatmulAlgo_t *algo, float *out_ms)
{
    float again;
    TRY(time_runs(device, t, algo, 1, out_ms)); /* warms up; the time tells how many fill a millisecond */
    int repeats = *out_ms > 0.05f ? (int)(1.0f / *out_ms) + 1 : 20;
    TRY(time_runs(device, t, algo, repeats, out_ms));
    if (*out_ms >= LEAST_LOAD_MS) return OK;
    TRY(time_runs(device, t, algo, repeats, &again));
    if (again < *out_ms) *out_ms = again;
    return OK;
}

/* A GPU with busy matrix units lowers its clocks to stay within its power limit, and algorithms differ in power. So algorithms of long
 * products are timed one after another, each after it has run for a while. The order goes forward, then back, as the previous algorithm
 * has an influence too. times: milliseconds of each; 0: it can't run. */
static Status time_under_load(CudaDevice *device, const Timing *t, const cublasLtMatmulHeuristicResult_t *results, float *times, int count)
{
    float loaded[MAX_ALGOS] = {0}, ms;
    for (int i = 0; i < 2 * count; i++) {
        int at = i < count ? i : 2 * count - 1 - i, repeats = times[at] > 0 ? (int)(LOAD_MS / times[at]) + 1 : 0;
        if (!repeats) continue;
        TRY(time_runs(device, t, &results[at].algo, repeats, &ms));
        TRY(time_runs(device, t, &results[at].algo, repeats, &ms));
        loaded[at] += ms / 2;
    }
    memcpy(times, loaded, (size_t)count * sizeof *times);
    return OK;
}

/* Fills a and b with random values, and c with zeros; random false: fills all with zeros. */
static Status fill_operands(const Gemm *g, bool random, cudaStream_t stream)
{
    const GemmOperand *operands[] = {&g->a, &g->b, &g->c};
    const int64_t      dims[][2] = {{g->m, g->k}, {g->k, g->n}, {g->m, g->n}};
    for (int i = 0; i < 3; i++) {
        const GemmOperand *x = operands[i];
        int64_t            rows = dims[i][x->trans], cols = dims[i][!x->trans];
        if (random && i < 2)
            TRY(cuda_fill_random(first_of(x), x->dtype, rows, cols, x->stride, stream));
        else
            CUDA_TRY(cudaMemset2DAsync(first_of(x), (size_t)dtype_bytes(x->dtype, x->stride), 0, (size_t)dtype_bytes(x->dtype, cols),
                                       (size_t)rows, stream));
    }
    return OK;
}

Status cuda_gemm_prepare(CudaDevice *device, const Gemm *g, void *workspace, size_t workspace_bytes)
{
    GemmPlan                       *plan = g->m && g->n ? plan_of(device, g) : NULL;
    cublasLtMatmulHeuristicResult_t results[MAX_ALGOS];
    if (!plan || !plan->supported || plan->chosen) return OK;
    if (take_known(&device->lib, cache_of(device), g, plan)) return OK; /* rank 0 has shared it since the plan was made */
    int    count = find_algos(&device->lib, g, plan, results), best = -1;
    Timing t = {.gemm = g, .plan = plan, .workspace = workspace, .workspace_bytes = workspace_bytes};
    float  times[MAX_ALGOS] = {0};
    CUDA_TRY(cudaEventCreate(&t.events[0]));
    CUDA_TRY(cudaEventCreate(&t.events[1]));
    TRY(fill_operands(g, true, device->stream));
    for (int i = 0; i < count; i++) {
        if (results[i].workspaceSize > workspace_bytes || results[i].workspaceSize > workspace_of(g)) continue;
        if (time_algo(device, &t, &results[i].algo, &times[i]) == OK) continue;
        cudaGetLastError();
        times[i] = 0;
    }
    for (int i = 0; i < count; i++)
        if (times[i] > 0 && (best < 0 || times[i] < times[best])) best = i;
    if (best >= 0 && times[best] >= LEAST_LOAD_MS) TRY(time_under_load(device, &t, results, times, count));
    for (int i = 0; i < count; i++)
        if (times[i] > 0 && times[i] < times[best]) best = i;
    TRY(fill_operands(g, false, device->stream));
    CUDA_TRY(cudaStreamSynchronize(device->stream));
    cudaEventDestroy(t.events[0]);
    cudaEventDestroy(t.events[1]);
    if (best < 0 && (is_fp8(&g->a) || is_fp4(g))) { /* for some dims it offers FP8 algorithms that then refuse to run */
        log_info("cuBLASLt: none of %d algorithms runs the product %s: our own, slow kernel is used", count, plan->key);
        plan->supported = false;
        return OK;
    }
    FAIL_IF(best < 0, ERR_DEVICE, "cuBLASLt: none of %d algorithms runs the product %s", count, plan->key);
    plan->algo = results[best].algo;
    plan->microseconds = times[best] * 1000;
    plan->chosen = true;
    KnownAlgo *known = add_known(cache_of(device), plan->key);
    memcpy(known->words, &plan->algo, sizeof plan->algo);
    known->microseconds = plan->microseconds;
    device->gemm->changed = true;
    return OK;
}

void cuda_gemm_close(CudaDevice *device)
{
    CudaGemmCache *cache = device->gemm;
    if (!cache) return;
    for (int i = 0; i < cache->num_plans; i++) {
        GemmPlan *plan = &cache->plans[i];
        if (plan->desc) device->lib.cublasLtMatmulDescDestroy(plan->desc);
        if (plan->a) device->lib.cublasLtMatrixLayoutDestroy(plan->a);
        if (plan->b) device->lib.cublasLtMatrixLayoutDestroy(plan->b);
        if (plan->c) device->lib.cublasLtMatrixLayoutDestroy(plan->c);
    }
    free(cache->plans);
    free(cache->known);
    free(cache);
    device->gemm = NULL;
}
