/* Quantised folders: the values of codes, bit for bit, and every way in which such a folder can be wrong. */
#include "base/philox.h"
#include "files/file.h"
#include "model/hf_model.h"
#include "model/make_again.h"
#include "model/merge.h"
#include "test.h"

#include <unistd.h>

static void open_fixture(Arena *arena, const char *name, HfModel **out)
{
    EXPECT_OK(hf_model_open(arena, arena_printf(arena, "tests/fixtures/quantised/%s", name), out));
    EXPECT_OK(hf_model_open_weights(*out));
}

/* A matrix of each folder, whole and in odd ranges, as transformers dequantises it (written by the oracle). */
static void codes_stand_for_what_transformers_has(void)
{
    static const char *const names[] = {"nf4", "nf4_double", "fp8", "nvfp4"};
    for (int i = 0; i < 4; i++) {
        Arena           arena = {0};
        HfModel        *model;
        StFile         *expected;
        const StTensor *want, *got;
        open_fixture(&arena, names[i], &model);
        EXPECT_OK(st_open(arena_printf(&arena, "tests/fixtures/quantised/%s/expected.safetensors", names[i]), &expected));
        EXPECT_OK(st_require(expected, "k_proj", &want));
        EXPECT_OK(st_require(model->weights, "model.layers.0.self_attn.k_proj.weight", &got));
        EXPECT(got->ndim == 2 && got->dim[0] == want->dim[0] && got->dim[1] == want->dim[1]);
        EXPECT(quantised_of(got) && !quantised_of(st_find(model->weights, "model.layers.0.self_attn.o_proj.weight")));
        float *all = arena_array(&arena, float, got->numel);
        EXPECT_OK(st_check_range(got, DT_F32));
        for (int64_t first = 0, count = 1; first < got->numel; first += count, count = count * 3 % 101) {
            if (count > got->numel - first) count = got->numel - first;
            EXPECT_OK(st_to_f32(got, first, count, all + first));
        }
        EXPECT(memcmp(all, want->data, want->bytes) == 0);
        EXPECT_INT(st_count(model->weights), 13);
        EXPECT(!json_get(&model->config, "quantization_config"));
        st_close(expected);
        hf_model_close(model);
        arena_deinit(&arena);
    }
}

/* ---- files that a test writes ---- */

enum { MOST_TENSORS = 10 };

typedef struct Folder {
    Arena  arena;
    StDecl decls[MOST_TENSORS];
    int    count;
} Folder;

/* Adds a tensor, or replaces the one of the same name; data NULL: random bytes. */
static void put(Folder *f, const char *name, StDType dtype, const void *data, int ndim, const int64_t *dim)
{
    int     at = 0;
    StDecl *decl;
    while (at < f->count && strcmp(f->decls[at].name, name) != 0) at++;
    decl = &f->decls[at];
    f->count += at == f->count;
    *decl = (StDecl){.name = name, .dtype = dtype, .ndim = ndim, .data = data};
    for (int i = 0; i < ndim; i++) decl->dim[i] = dim[i];
    size_t   bytes = st_decl_bytes(decl);
    uint8_t *fill = arena_alloc(&f->arena, bytes + 1);
    for (size_t i = 0; i < bytes && !data; i++) fill[i] = (uint8_t)(philox4x32((uint32_t)i, (uint32_t)at, 0, 0, 5).v[0] % 0x7F);
    if (!data) decl->data = fill;
}

#define PUT(f, name, dtype, data, ...) \
    put(f, name, dtype, data, (int)(sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t)), (const int64_t[]){__VA_ARGS__})

static void drop(Folder *f, const char *name)
{
    int at = 0;
    while (strcmp(f->decls[at].name, name) != 0) at++;
    f->decls[at] = f->decls[--f->count];
}

static void put_state(Folder *f, const char *json)
{
    PUT(f, "w.quant_state.bitsandbytes__nf4", ST_U8, json, (int64_t)strlen(json));
}

static const char plain_state[] = "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [6, 50]}";
static const char nested_state[] = "{\"quant_type\": \"nf4\", \"blocksize\": 64, \"dtype\": \"bfloat16\", \"shape\": [6, 50],"
                                   " \"nested_blocksize\": 256, \"nested_dtype\": \"float32\", \"nested_offset\": 0.25}";

/* Adds the maps that bitsandbytes writes, read from one of its folders. */
static void put_maps(Folder *f)
{
    StFile         *file;
    const StTensor *map;
    const char     *name = "model.layers.0.self_attn.k_proj.weight";
    EXPECT_OK(st_open("tests/fixtures/quantised/nf4_double", &file));
    EXPECT_OK(st_require(file, arena_printf(&f->arena, "%s.quant_map", name), &map));
    PUT(f, "w.quant_map", ST_F32, memcpy(arena_alloc(&f->arena, 64), map->data, 64), 16);
    EXPECT_OK(st_require(file, arena_printf(&f->arena, "%s.nested_quant_map", name), &map));
    PUT(f, "w.nested_quant_map", ST_F32, memcpy(arena_alloc(&f->arena, 1024), map->data, 1024), 256);
    st_close(file);
}

/* 6 x 50 elements: 5 blocks, the last of which is short. */
static Folder nf4_folder(bool nested)
{
    static const float scales[5] = {1, 2, 3, 4, 0.5f}, one = 2;
    Folder             f = {0};
    put_maps(&f);
    PUT(&f, "w", ST_U8, NULL, 150, 1);
    if (!nested) drop(&f, "w.nested_quant_map");
    if (nested) PUT(&f, "w.absmax", ST_U8, NULL, 5);
    if (nested) PUT(&f, "w.nested_absmax", ST_F32, &one, 1);
    if (!nested) PUT(&f, "w.absmax", ST_F32, scales, 5);
    put_state(&f, nested ? nested_state : plain_state);
    return f;
}

static const float six[6] = {1, 2, 3, 4, 5, 6};

/* 3 x 2 tiles, the last of which are cut. */
static Folder fp8_folder(void)
{
    Folder f = {0};
    PUT(&f, "w", ST_F8_E4M3, NULL, 300, 130);
    PUT(&f, "w_scale_inv", ST_F32, six, 3, 2);
    return f;
}

static Folder nvfp4_folder(void)
{
    Folder f = {0};
    PUT(&f, "m.weight", ST_U8, NULL, 3, 24);
    PUT(&f, "m.weight_scale", ST_F8_E4M3, NULL, 3, 3);
    put(&f, "m.weight_scale_2", ST_F32, six, 0, NULL);
    PUT(&f, "m.input_scale", ST_F32, NULL, 1);
    return f;
}

/* Opens the folder, decodes every value and deletes the folder. */
static Status read_all(Folder *f, QuantisedFormat format, float *values)
{
    char    path[] = "/tmp/surogate_quantised_XXXXXX";
    int     fd = mkstemp(path);
    StFile *file;
    EXPECT(fd >= 0);
    close(fd);
    EXPECT_OK(st_write(path, f->decls, (size_t)f->count, NULL, NULL, NULL));
    EXPECT_OK(st_open(path, &file));
    unlink(path);
    Status status = quantised_open(&f->arena, file, format, ST_BF16);
    if (status == OK) EXPECT_INT(st_count(file), 1);
    if (status == OK) status = st_check_range(st_at(file, 0), DT_F32);
    if (status == OK && values) status = st_to_f32(st_at(file, 0), 0, st_at(file, 0)->numel, values);
    st_close(file);
    arena_deinit(&f->arena);
    return status;
}

/* Matrices whose last block or tile is short. */
static void blocks_that_are_cut_are_read(void)
{
    float   w[300 * 130];
    Folder  f = fp8_folder();
    uint8_t codes[300 * 130];
    memcpy(codes, f.decls[0].data, sizeof codes);
    EXPECT_OK(read_all(&f, QUANTISED_FP8, w));
    for (int i = 0; i < 300 * 130; i++) {
        float code;
        dtype_decode(DT_E4M3, &codes[i], 1, &code);
        if (w[i] != code * six[i / 130 / 128 * 2 + (i % 130 >= 128)])
            test_fail(__FILE__, __LINE__, "fp8: element %d is %g", i, (double)w[i]);
    }
    f = nf4_folder(false);
    for (int i = 0; i < f.count; i++)
        if (strcmp(f.decls[i].name, "w") == 0) memcpy(codes, f.decls[i].data, 150);
    EXPECT_OK(read_all(&f, QUANTISED_NF4, w));
    static const float scales[5] = {1, 2, 3, 4, 0.5f};
    for (int i = 0; i < 300; i++) {
        float code[2];
        dtype_decode(DT_NF4, &codes[i / 2], 2, code);
        if (w[i] != code[i % 2] * scales[i / 64]) test_fail(__FILE__, __LINE__, "nf4: element %d is %g", i, (double)w[i]);
    }
    f = nf4_folder(true);
    EXPECT_OK(read_all(&f, QUANTISED_NF4, w));
    f = nvfp4_folder();
    EXPECT_OK(read_all(&f, QUANTISED_NVFP4, w));
}

/* Scales in bf16, as Qwen publishes them, are kept as fp32. Bytes of codes may be stored under any dtype (bnb_4bit_quant_storage). */
static void other_dtypes_are_read(void)
{
    static const uint16_t bf16[6] = {0x3F80, 0x4000, 0x4040, 0x4080, 0x40A0, 0x40C0}; /* 1 to 6 */
    float                 w[300 * 130], same[300 * 130], *scratch = NULL;
    Folder                f = fp8_folder();
    EXPECT_OK(read_all(&f, QUANTISED_FP8, w));
    f = fp8_folder();
    PUT(&f, "w_scale_inv", ST_BF16, bf16, 3, 2);
    EXPECT_OK(read_all(&f, QUANTISED_FP8, same));
    EXPECT(memcmp(w, same, sizeof w) == 0);
    QuantisedTensor q = {.format = QUANTISED_FP8, .made = {.parts = q.parts, .num_parts = 2}};
    q.parts[QUANTISED_SCALES] = (StTensor){.dtype = ST_BF16, .numel = 6, .data = bf16};
    EXPECT(memcmp(quantised_part(&q, QUANTISED_SCALES, &scratch), six, sizeof six) == 0);
    free(scratch);
    f = nf4_folder(false);
    EXPECT_OK(read_all(&f, QUANTISED_NF4, w));
    f = nf4_folder(false);
    for (int i = 0; i < f.count; i++)
        if (strcmp(f.decls[i].name, "w") == 0) PUT(&f, "w", ST_BF16, f.decls[i].data, 75, 1);
    EXPECT_OK(read_all(&f, QUANTISED_NF4, same));
    EXPECT(memcmp(w, same, 300 * sizeof *w) == 0);
}

#define REFUSED(make, change, format, status, part) \
    do { \
        Folder f = make; \
        change; \
        EXPECT_FAILS(read_all(&f, format, NULL), status, part); \
    } while (0)

static void parts_that_are_wrong_are_named(void)
{
    static const float nan_scale[6] = {1, 1, NAN, 1, 1, 1};
    REFUSED(fp8_folder(), drop(&f, "w_scale_inv"), QUANTISED_FP8, ERR_INVALID,
            "there is no tensor w_scale_inv beside w, which is F8_E4M3; expected F32 or BF16 [3,2]");
    REFUSED(fp8_folder(), PUT(&f, "w_scale_inv", ST_F32, six, 2, 3), QUANTISED_FP8, ERR_INVALID,
            "tensor w_scale_inv is F32 [2,3]; expected F32 or BF16 [3,2]");
    REFUSED(fp8_folder(), PUT(&f, "w_scale_inv", ST_U8, NULL, 3, 2), QUANTISED_FP8, ERR_INVALID, "w_scale_inv is U8 [3,2]");
    REFUSED(fp8_folder(), PUT(&f, "w", ST_I8, NULL, 300, 130), QUANTISED_FP8, ERR_INVALID, "tensor w is I8");
    REFUSED(fp8_folder(), PUT(&f, "w_scale_inv", ST_F32, nan_scale, 3, 2), QUANTISED_FP8, ERR_INVALID,
            "\"w_scale_inv\" holds NaN at [1, 0]");
    uint8_t nan_code = 0x7F;
    REFUSED(fp8_folder(), PUT(&f, "w", ST_F8_E4M3, &nan_code, 1, 1);
            PUT(&f, "w_scale_inv", ST_F32, six, 1, 1), QUANTISED_FP8, ERR_INVALID, "\"w\" holds NaN at [0, 0]");
    static const float large[6] = {1, 1, 1, 1, 3e38f, 1};
    REFUSED(fp8_folder(), PUT(&f, "w_scale_inv", ST_F32, large, 3, 2), QUANTISED_FP8, ERR_INVALID, "\"w\" holds an infinity at [256, ");
    REFUSED(nvfp4_folder(), drop(&f, "m.weight_scale_2"), QUANTISED_NVFP4, ERR_INVALID, "no tensor m.weight_scale_2 beside m.weight");
    REFUSED(nvfp4_folder(), PUT(&f, "m.weight_scale_2", ST_F32, six, 2), QUANTISED_NVFP4, ERR_INVALID, "m.weight_scale_2 is F32 [2]");
    REFUSED(nvfp4_folder(), PUT(&f, "m.weight_scale", ST_U8, NULL, 3, 3), QUANTISED_NVFP4, ERR_INVALID, "expected F8_E4M3 [3,3]");
    REFUSED(nvfp4_folder(), PUT(&f, "m.weight", ST_U8, NULL, 3, 20), QUANTISED_NVFP4, ERR_INVALID, "40 columns");
    REFUSED(nvfp4_folder(), PUT(&f, "m.weight_scale", ST_F8_E4M3, memset(arena_alloc(&f.arena, 9), 0x7F, 9), 3, 3), QUANTISED_NVFP4,
            ERR_INVALID, "holds NaN");
    REFUSED(nf4_folder(false), drop(&f, "w.quant_state.bitsandbytes__nf4"), QUANTISED_NF4, ERR_INVALID,
            "there is no tensor w.quant_state.bitsandbytes__nf4");
    REFUSED(nf4_folder(false), drop(&f, "w.absmax"), QUANTISED_NF4, ERR_INVALID, "expected F32 [5]");
    REFUSED(nf4_folder(false), PUT(&f, "w.absmax", ST_F32, six, 6), QUANTISED_NF4, ERR_INVALID, "w.absmax is F32 [6]; expected F32 [5]");
    REFUSED(nf4_folder(false), PUT(&f, "w.absmax", ST_F32, nan_scale, 5), QUANTISED_NF4, ERR_INVALID, "\"w.absmax\" holds NaN at [2]");
    REFUSED(nf4_folder(false), drop(&f, "w.quant_map"), QUANTISED_NF4, ERR_INVALID, "no tensor w.quant_map");
    REFUSED(nf4_folder(false), PUT(&f, "w.quant_map", ST_F32, NULL, 16), QUANTISED_NF4, ERR_UNSUPPORTED, "only bitsandbytes' own map");
    REFUSED(nf4_folder(false), PUT(&f, "w", ST_U8, NULL, 149, 1), QUANTISED_NF4, ERR_INVALID, "has 149 bytes");
    REFUSED(nf4_folder(true), drop(&f, "w.nested_absmax"), QUANTISED_NF4, ERR_INVALID, "expected F32 [1]");
    REFUSED(nf4_folder(true), drop(&f, "w.nested_quant_map"), QUANTISED_NF4, ERR_INVALID, "expected F32 [256]");
    REFUSED(nf4_folder(true), PUT(&f, "w.absmax", ST_F32, six, 5), QUANTISED_NF4, ERR_INVALID, "expected U8 [5]");
}

static void states_that_are_wrong_are_named(void)
{
    static const struct {
        const char *state;
        Status      status;
        const char *part;
    } cases[] = {
        {"{\"quant_type\": \"nf4\", \"blocksize\": 64, \"sha", ERR_INVALID, "w.quant_state.bitsandbytes__nf4:1:"},
        {"[]", ERR_INVALID, "\"shape\" is no list"},
        {"{\"shape\": [6, -50]}", ERR_INVALID, "\"shape\" is no list of two numbers above 0"},
        {"{\"shape\": [300]}", ERR_INVALID, "\"shape\" is no list"},
        {"{\"shape\": [4611686018427387904, 8]}", ERR_INVALID, "has 150 bytes"},
        {"{\"shape\": [6, 51]}", ERR_INVALID, "expected half as many as elements in the shape [6,51]"},
        {"{\"shape\": [6, 50], \"quant_type\": \"fp4\", \"blocksize\": 64}", ERR_UNSUPPORTED, "type \"fp4\""},
        {"{\"shape\": [6, 50], \"quant_type\": \"nf4\", \"blocksize\": 128}", ERR_UNSUPPORTED,
         "in blocks of 128; only nf4 in blocks of 64"},
        {"{\"shape\": [6, 50], \"quant_type\": \"nf4\", \"blocksize\": 64, \"nested_offset\": NaN}", ERR_INVALID, "nf4:1:"},
        {"{\"shape\": [6, 50], \"quant_type\": \"nf4\", \"blocksize\": 64, \"nested_offset\": 1e300, \"nested_blocksize\": 256}",
         ERR_INVALID, "\"nested_offset\" is no number"},
        {"{\"shape\": [6, 50], \"quant_type\": \"nf4\", \"blocksize\": 64, \"nested_offset\": 1, \"nested_blocksize\": 64}",
         ERR_UNSUPPORTED, "blocks of 64"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        REFUSED(nf4_folder(true), put_state(&f, cases[i].state), QUANTISED_NF4, cases[i].status, cases[i].part);
}

static Status parse(const char *text, QuantisedFormat *out)
{
    Arena     arena = {0};
    JsonValue config;
    EXPECT_OK(json_parse(&arena, "test", text, strlen(text), &config));
    Status status = quantised_parse(&config, "config.json", out);
    arena_deinit(&arena);
    return status;
}

static void configs_are_read_or_named(void)
{
    static const struct {
        const char     *text;
        QuantisedFormat format; /* NONE: refused */
        const char     *part;
    } cases[] = {
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\"}", QUANTISED_NF4, NULL},
        {"{\"load_in_4bit\": true, \"bnb_4bit_quant_type\": \"nf4\"}", QUANTISED_NF4, NULL},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}", QUANTISED_FP8, NULL},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\"}", QUANTISED_NVFP4, NULL},
        {"{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {\"quant_algo\": \"NVFP4\"}}", QUANTISED_NVFP4, NULL},
        {"{\"quant_method\": \"gptq\", \"bits\": 4}", QUANTISED_NONE,
         "config.json: the model is quantised with quant_method gptq; read are"},
        {"{\"quant_method\": \"awq\"}", QUANTISED_NONE, "quant_method awq"},
        {"[1]", QUANTISED_NONE, "quant_method (none)"},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_8bit\": true}", QUANTISED_NONE, "8 bits"},
        {"{\"quant_method\": \"bitsandbytes\", \"load_in_4bit\": true}", QUANTISED_NONE, "to fp4 (bnb_4bit_quant_type)"},
        {"{\"quant_method\": \"fp8\"}", QUANTISED_NONE, "weight_block_size not set"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [64, 128]}", QUANTISED_NONE, "weight_block_size [64, 128]"},
        {"{\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], \"activation_scheme\": \"static\"}", QUANTISED_NONE, "static"},
        {"{\"quant_method\": \"modelopt\", \"quant_algo\": \"FP8\"}", QUANTISED_NONE, "to FP8 (quant_algo)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        QuantisedFormat format = QUANTISED_NONE;
        if (cases[i].part)
            EXPECT_FAILS(parse(cases[i].text, &format), ERR_UNSUPPORTED, cases[i].part);
        else
            EXPECT_OK(parse(cases[i].text, &format));
        if (!cases[i].part) EXPECT_INT(format, cases[i].format);
    }
}

/* ---- merging in the folder's format ---- */

#define LAYER "model.layers.0.self_attn."

/* An adapter of k_proj, whose matrix is quantised, and of o_proj, whose matrix isn't. Its products are exact: each element of B is a power
 * of two. */
static void write_adapter(Arena *arena, const HfModel *model, const char *dir)
{
    static const char *const modules[] = {LAYER "k_proj", LAYER "o_proj"};
    StDecl                   decls[4] = {0};
    const char *config = "{\"peft_type\": \"LORA\", \"r\": 1, \"lora_alpha\": 1, \"target_modules\": [\"k_proj\", \"o_proj\"]}";
    for (int i = 0; i < 4; i++) {
        const StTensor *w = st_find(model->weights, arena_printf(arena, "%s.weight", modules[i / 2]));
        int64_t         count = w->dim[i % 2 ? 0 : 1];
        float          *values = arena_array(arena, float, count);
        for (int64_t k = 0; k < count; k++) values[k] = i % 2 ? (k % 3 ? 0.125f : -0.25f) : (float)(k % 7) / 20 - 0.1f;
        decls[i] = (StDecl){.name = arena_printf(arena, "base_model.model.%s.lora_%c.weight", modules[i / 2], i % 2 ? 'B' : 'A'),
                            .dtype = ST_F32,
                            .ndim = 2,
                            .dim = {i % 2 ? count : 1, i % 2 ? 1 : count},
                            .data = values};
    }
    EXPECT_OK(st_write(arena_printf(arena, "%s/adapter_model.safetensors", dir), decls, 4, NULL, NULL, NULL));
    EXPECT_OK(file_write_atomic(arena_printf(arena, "%s/adapter_config.json", dir), config, strlen(config)));
}

/* The format's rounding of the base's values plus the adapter's product. */
static float *expected_k(Arena *arena, const HfModel *base)
{
    const StTensor *w = st_find(base->weights, LAYER "k_proj.weight");
    float          *values = arena_array(arena, float, w->numel);
    EXPECT_OK(st_to_f32(w, 0, w->numel, values));
    for (int64_t i = 0; i < w->numel; i++) values[i] += (i / w->dim[1] % 3 ? 0.125f : -0.25f) * ((float)(i % w->dim[1] % 7) / 20 - 0.1f);
    EXPECT_OK(weight_make_again(quantised_weight_format(quantised_of(w)), w->dim[0], w->dim[1], values, NULL));
    return values;
}

/* Compares tensors of two files: those whose names contain `word`; NULL: those of neither adapted module. */
static void expect_same(const StFile *a, const StFile *b, const char *word)
{
    for (size_t i = 0; i < st_count(a); i++) {
        const StTensor *x = st_at(a, i), *y = st_find(b, x->name);
        bool            is_adapted = strstr(x->name, "k_proj") || strstr(x->name, "o_proj");
        if (word ? !strstr(x->name, word) : is_adapted) continue;
        EXPECT(y && y->dtype == x->dtype && y->bytes == x->bytes && memcmp(x->data, y->data, x->bytes) == 0);
    }
}

static void test_merge(const char *name)
{
    Arena       arena = {0};
    HfModel    *base, *merged;
    PeftAdapter adapter;
    StFile     *before, *after, *plain;
    const char *dirs[3];
    for (int i = 0; i < 3; i++) dirs[i] = mkdtemp(arena_strdup(&arena, "/tmp/merge_XXXXXX"));
    open_fixture(&arena, name, &base);
    write_adapter(&arena, base, dirs[0]);
    EXPECT_OK(peft_open(&arena, dirs[0], &adapter));
    EXPECT_OK(merge_adapter(base, &adapter, true, dirs[1], 1 << 30, NULL));
    EXPECT_OK(merge_adapter(base, &adapter, false, dirs[2], 1 << 30, NULL));
    EXPECT_OK(hf_model_open(&arena, dirs[1], &merged));
    EXPECT_OK(hf_model_open_weights(merged));
    EXPECT_INT(merged->format, base->format);
    EXPECT(merged->weight_format == base->weight_format);
    const StTensor *k = st_find(merged->weights, LAYER "k_proj.weight");
    float          *got = arena_array(&arena, float, k->numel), *want = expected_k(&arena, base);
    EXPECT_OK(st_to_f32(k, 0, k->numel, got));
    EXPECT(memcmp(got, want, sizeof *got * (size_t)k->numel) == 0);
    EXPECT_OK(st_open(base->dir, &before));
    EXPECT_OK(st_open(dirs[1], &after));
    EXPECT_OK(st_open(dirs[2], &plain));
    EXPECT_INT(st_count(after), st_count(before));
    expect_same(before, after, NULL);
    expect_same(plain, after, "o_proj");
    StFile *files[] = {before, after, plain};
    for (int i = 0; i < 3; i++) st_close(files[i]);
    hf_model_close(merged);
    hf_model_close(base);
    for (int i = 0; i < 3; i++) EXPECT_OK(file_remove_tree(dirs[i]));
    arena_deinit(&arena);
}

/* A merged matrix is the exact sum rounded to its format; all other tensors keep their bytes. */
static void a_merge_keeps_the_format(void)
{
    static const char *const names[] = {"nf4", "nf4_double", "fp8", "nvfp4"};
    for (int i = 0; i < 4; i++) test_merge(names[i]);
}

TEST_MAIN(TEST(codes_stand_for_what_transformers_has), TEST(blocks_that_are_cut_are_read), TEST(other_dtypes_are_read),
          TEST(parts_that_are_wrong_are_named), TEST(states_that_are_wrong_are_named), TEST(configs_are_read_or_named),
          TEST(a_merge_keeps_the_format))
