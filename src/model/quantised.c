/* Quantised folders: the format that config.json names, the tensors that make up a matrix, and the values that codes stand for. Each
 * product or sum is rounded to fp32 once, as in the ops that dequantise. */
#include "model/quantised.h"

#include "base/json_edit.h"
#include "base/scoped.h"
#include "ops/infer.h"
#include "ops/lowbit/fp8_tiles.h"
#include "ops/lowbit/nf4.h"
#include "ops/lowbit/nvfp4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SUFFIXES = 6 };

/* The context for reading the parts of a file. */
typedef struct Reader {
    Arena            *arena;
    const StFile     *file;
    const DynamicMap *map; /* map of signed codes */
    StDType           as;
} Reader;

/* ---- numbers ---- */

static float nf4_block(const QuantisedTensor *q, int64_t block)
{
    const StTensor *scales = &q->parts[QUANTISED_SCALES];
    if (scales->dtype == ST_F32) return ((const float *)scales->data)[block];
    const float *nested = q->parts[QUANTISED_OUTER].data;
    return nf4_scale_of(dynamic_value(q->map, true, ((const uint8_t *)scales->data)[block]), nested[block / NF4_NESTED], q->offset);
}

static void nf4_to_f32(const StMade *made, int64_t first, int64_t count, float *dst)
{
    const QuantisedTensor *q = (const QuantisedTensor *)made;
    const uint8_t         *codes = q->parts[QUANTISED_CODES].data;
    float                  values[NF4_CODES];
    for (int64_t at = first, end; at < first + count; at = end) {
        int64_t block = at / NF4_BLOCK;
        float   scale = nf4_block(q, block);
        end = min_i64((block + 1) * NF4_BLOCK, first + count);
        for (int code = 0; code < NF4_CODES; code++) values[code] = nf4_value(code) * scale;
        for (int64_t i = at; i < end; i++) *dst++ = values[codes[i / 2] >> (i % 2 ? 0 : 4) & 15];
    }
}

static void fp8_to_f32(const StMade *made, int64_t first, int64_t count, float *dst)
{
    const QuantisedTensor *q = (const QuantisedTensor *)made;
    const uint8_t         *codes = q->parts[QUANTISED_CODES].data;
    const StTensor        *scales = &q->parts[QUANTISED_SCALES];
    for (int64_t at = first, end; at < first + count; at = end) {
        int64_t row = at / q->cols, tile = at % q->cols / FP8_TILE;
        float   scale = 0;
        end = min_i64(row * q->cols + min_i64((tile + 1) * FP8_TILE, q->cols), first + count);
        Status status = st_to_f32(scales, row / FP8_TILE * scales->dim[1] + tile, 1, &scale);
        CHECK(status == OK); /* can't fail: scales have a float dtype */
        for (int64_t i = at; i < end; i++) *dst++ = small_decode(small_e4m3(), codes[i]) * scale;
    }
}

static void nvfp4_to_f32(const StMade *made, int64_t first, int64_t count, float *dst)
{
    const QuantisedTensor *q = (const QuantisedTensor *)made;
    const uint8_t         *codes = q->parts[QUANTISED_CODES].data, *scales = q->parts[QUANTISED_SCALES].data;
    float                  global = *(const float *)q->parts[QUANTISED_OUTER].data, values[16];
    for (int64_t at = first, end; at < first + count; at = end) {
        int64_t block = at / NVFP4_BLOCK; /* rows are whole blocks */
        end = min_i64((block + 1) * NVFP4_BLOCK, first + count);
        for (uint32_t code = 0; code < 16; code++) values[code] = nvfp4_value(code, nvfp4_scale(scales[block]), global);
        for (int64_t i = at; i < end; i++) *dst++ = values[codes[i / 2] >> (i % 2 ? 4 : 0) & 15];
    }
}

/* ---- whether they are tame ---- */

/* Whether all values of a part are so small that no product with a code overflows; false if one is NaN. */
static bool is_small(const StTensor *part)
{
    enum { COUNT = 4096 };
    float values[COUNT];
    for (int64_t first = 0; first < part->numel; first += COUNT) {
        int64_t count = min_i64(COUNT, part->numel - first);
        bool    small = st_to_f32(part, first, count, values) == OK;
        for (int64_t i = 0; i < count; i++) small &= fabsf(values[i]) < 1e30f;
        if (!small) return false;
    }
    return true;
}

static bool has_nan_code(const StTensor *part) /* of E4M3 */
{
    const uint8_t *codes = part->data;
    bool           found = false;
    for (int64_t i = 0; i < part->numel; i++) found |= (codes[i] & 0x7F) == small_e4m3().nan;
    return found;
}

static bool nf4_is_tame(const StMade *made)
{
    const QuantisedTensor *q = (const QuantisedTensor *)made;
    return fabsf(q->offset) < 1e30f && is_small(&q->parts[made->num_parts - 1]);
}

static bool fp8_is_tame(const StMade *made)
{
    return is_small(&made->parts[QUANTISED_SCALES]) && !has_nan_code(&made->parts[QUANTISED_CODES]);
}

static bool nvfp4_is_tame(const StMade *made)
{
    return is_small(&made->parts[QUANTISED_OUTER]) && !has_nan_code(&made->parts[QUANTISED_SCALES]);
}

/* ---- the tensors of a matrix ---- */

/* Fails with a message of what is wrong with a part. want: the dtypes that it may have, in words. */
static Status wrong_part(const StTensor *codes, const char *name, const StTensor *part, const char *want, const int64_t *dim, int ndim)
{
    char have[ST_SHAPE_BYTES], expected[ST_SHAPE_BYTES];
    st_shape_text(dim, ndim, expected);
    FAIL_IF(!part, ERR_INVALID, "%s: there is no tensor %s beside %s, which is %s; expected %s %s", codes->path, name, codes->name,
            st_dtype_name(codes->dtype), want, expected);
    FAIL(ERR_INVALID, "%s: tensor %s is %s %s; expected %s %s, as the codes of %s need", part->path, name, st_dtype_name(part->dtype),
         st_shape_text(part->dim, part->ndim, have), want, expected, codes->name);
}

typedef uint32_t StDTypeSet; /* bit per StDType */
#define ST_SET(dtype) (1u << (dtype))
#define ST_SET_FLOAT (ST_SET(ST_F32) | ST_SET(ST_BF16) | ST_SET(ST_F16))

/* Finds the part named after the codes, with `suffix`; it must have one of `dtypes` and the shape `dim`. want: the dtypes, in words. */
static Status find_part(const Reader *r, const StTensor *codes, const char *suffix, StDTypeSet dtypes, const char *want, int ndim,
                        const int64_t *dim, StTensor *out)
{
    const char     *name = arena_printf(r->arena, "%s%s", codes->name, suffix);
    const StTensor *part = st_find(r->file, name);
    bool            fits = part && (dtypes & ST_SET(part->dtype)) && part->ndim == ndim;
    for (int i = 0; i < ndim && fits; i++) fits = part->dim[i] == dim[i];
    if (!fits) return wrong_part(codes, name, part, want, dim, ndim);
    *out = *part;
    if (!st_is_aligned(part)) { /* scales are read in place */
        void *copy = arena_alloc(r->arena, part->bytes);
        memcpy(copy, part->data, part->bytes);
        out->data = copy;
    }
    return OK;
}

/* ---- NF4 ---- */

/* Checks that the map stored in the file is the one that codes are decoded with. */
static Status check_map(const Reader *r, const StTensor *codes, const char *suffix, const float *expected, int64_t count)
{
    StTensor map;
    TRY(find_part(r, codes, suffix, ST_SET(ST_F32), "F32", 1, &count, &map));
    for (int64_t i = 0; i < count; i++) {
        float value = ((const float *)map.data)[i];
        FAIL_IF(!(fabsf(value - expected[i]) <= 1e-5f * fabsf(expected[i])), ERR_UNSUPPORTED,
                "%s: tensor %s has %g at [%lld]; only bitsandbytes' own map is read, which has %g there", map.path, map.name, (double)value,
                (long long)i, (double)expected[i]);
    }
    return OK;
}

/* Reads the matrix's rows and columns from the state's "shape". */
static Status read_shape(const JsonValue *state, const StTensor *holder, const StTensor *codes, QuantisedTensor *q)
{
    const JsonValue *shape = json_get(state, "shape");
    bool             is_matrix = shape && shape->type == JSON_ARRAY && shape->count == 2 && shape->items[0].type == JSON_INT &&
                     shape->items[1].type == JSON_INT && shape->items[0].integer > 0 && shape->items[1].integer > 0;
    FAIL_IF(!is_matrix, ERR_INVALID, "%s: tensor %s: \"shape\" is no list of two numbers above 0", holder->path, holder->name);
    int64_t numel;
    q->rows = shape->items[0].integer;
    q->cols = shape->items[1].integer;
    bool overflows = __builtin_mul_overflow(q->rows, q->cols, &numel);
    FAIL_IF(overflows || numel % 2 || (size_t)numel / 2 != codes->bytes, ERR_INVALID,
            "%s: tensor %s has %zu bytes; expected half as many as elements in the shape [%lld,%lld] of %s, which is even", codes->path,
            codes->name, codes->bytes, (long long)q->rows, (long long)q->cols, holder->name);
    return OK;
}

static Status read_nested(const Reader *r, const JsonValue *state, const StTensor *holder, const StTensor *codes, int64_t blocks,
                          QuantisedTensor *q)
{
    double      offset;
    int64_t     nested_block = 0, nested = div_up(blocks, NF4_NESTED);
    const char *dtype = "float32";
    json_get_int(state, "nested_blocksize", &nested_block);
    json_get_str(state, "nested_dtype", &dtype);
    FAIL_IF(nested_block != NF4_NESTED || strcmp(dtype, "float32") != 0, ERR_UNSUPPORTED,
            "%s: tensor %s: scales are quantised in blocks of %lld, with scales of %s; only blocks of %d and float32 are read",
            holder->path, holder->name, (long long)nested_block, dtype, NF4_NESTED);
    FAIL_IF(!json_get_double(state, "nested_offset", &offset) || !isfinite((float)offset), ERR_INVALID,
            "%s: tensor %s: \"nested_offset\" is no number", holder->path, holder->name);
    q->offset = (float)offset;
    q->made.num_parts = 3;
    float map[256];
    for (int i = 0; i < 256; i++) map[i] = dynamic_value(r->map, true, i);
    TRY(check_map(r, codes, ".nested_quant_map", map, 256));
    TRY(find_part(r, codes, ".absmax", ST_SET(ST_U8), "U8", 1, &blocks, &q->parts[QUANTISED_SCALES]));
    return find_part(r, codes, ".nested_absmax", ST_SET(ST_F32), "F32", 1, &nested, &q->parts[QUANTISED_OUTER]);
}

static const char nf4_state[] = ".quant_state.bitsandbytes__nf4";

static Status read_nf4(const Reader *r, const StTensor *codes, QuantisedTensor *q)
{
    const char     *name = arena_printf(r->arena, "%s%s", codes->name, nf4_state), *type = "";
    const StTensor *holder = st_find(r->file, name);
    FAIL_IF(!holder || holder->dtype != ST_U8 || holder->ndim != 1, ERR_INVALID,
            "%s: tensor %s is %s, but there is no tensor %s of U8 bytes that says how it was quantised", codes->path, codes->name,
            st_dtype_name(codes->dtype), name);
    JsonValue state;
    TRY(json_parse(r->arena, arena_printf(r->arena, "%s: tensor %s", holder->path, name), holder->data, holder->bytes, &state));
    TRY(read_shape(&state, holder, codes, q));
    q->parts[QUANTISED_CODES].dtype = ST_U8; /* plain bytes, whatever dtype they are stored as (bnb_4bit_quant_storage) */
    int64_t block = 0, blocks = div_up(q->rows * q->cols, NF4_BLOCK), num_codes = NF4_CODES;
    json_get_int(&state, "blocksize", &block);
    json_get_str(&state, "quant_type", &type);
    FAIL_IF(block != NF4_BLOCK || strcmp(type, "nf4") != 0, ERR_UNSUPPORTED,
            "%s: tensor %s: type \"%.40s\" in blocks of %lld; only nf4 in blocks of %d is read", holder->path, name, type, (long long)block,
            NF4_BLOCK);
    float map[NF4_CODES];
    for (int i = 0; i < NF4_CODES; i++) map[i] = nf4_value(i);
    TRY(check_map(r, codes, ".quant_map", map, num_codes));
    if (json_get(&state, "nested_offset")) return read_nested(r, &state, holder, codes, blocks, q);
    return find_part(r, codes, ".absmax", ST_SET(ST_F32), "F32", 1, &blocks, &q->parts[QUANTISED_SCALES]);
}

/* ---- FP8, NVFP4 ---- */

static Status check_matrix(const StTensor *codes, StDType dtype)
{
    FAIL_IF(codes->dtype != dtype || codes->ndim != 2 || !codes->numel, ERR_INVALID,
            "%s: tensor %s is %s with %d dimensions; expected a matrix of %s codes", codes->path, codes->name, st_dtype_name(codes->dtype),
            codes->ndim, st_dtype_name(dtype));
    return OK;
}

static Status read_fp8(const Reader *r, const StTensor *codes, QuantisedTensor *q)
{
    TRY(check_matrix(codes, ST_F8_E4M3));
    q->rows = codes->dim[0];
    q->cols = codes->dim[1];
    int64_t tiles[] = {div_up(q->rows, FP8_TILE), div_up(q->cols, FP8_TILE)};
    return find_part(r, codes, "_scale_inv", ST_SET_FLOAT, "F32 or BF16", 2, tiles, &q->parts[QUANTISED_SCALES]);
}

static Status read_nvfp4(const Reader *r, const StTensor *codes, QuantisedTensor *q)
{
    TRY(check_matrix(codes, ST_U8));
    q->rows = codes->dim[0];
    q->cols = 2 * codes->dim[1];
    FAIL_IF(q->cols % NVFP4_BLOCK, ERR_INVALID, "%s: tensor %s holds %lld columns of codes; expected a multiple of %d", codes->path,
            codes->name, (long long)q->cols, NVFP4_BLOCK);
    int64_t         blocks[] = {q->rows, q->cols / NVFP4_BLOCK}, one = 1;
    const StTensor *global = st_find(r->file, arena_printf(r->arena, "%s_scale_2", codes->name));
    q->made.num_parts = 3;
    TRY(find_part(r, codes, "_scale", ST_SET(ST_F8_E4M3), "F8_E4M3", 2, blocks, &q->parts[QUANTISED_SCALES]));
    return find_part(r, codes, "_scale_2", ST_SET(ST_F32), "F32", global && global->ndim ? 1 : 0, &one, &q->parts[QUANTISED_OUTER]);
}

/* ---- folders ---- */

typedef struct Format {
    const char *name, *kept;             /* name in messages; name in a plan */
    const char *suffixes[MOST_SUFFIXES]; /* ends of the names of other parts, after the name of the codes */
    const char *ignored[MOST_SUFFIXES];  /* ends of the names of tensors that aren't read: those about quantised activations */
    Status (*read)(const Reader *r, const StTensor *codes, QuantisedTensor *q);
    void (*to_f32)(const StMade *made, int64_t first, int64_t count, float *dst);
    bool (*is_tame)(const StMade *made);
} Format;

static const Format formats[] = {
    [QUANTISED_NONE] = {.name = "none"},
    [QUANTISED_NF4] = {.name = "NF4 (bitsandbytes)",
                       .kept = "nf4",
                       .suffixes = {nf4_state, ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"},
                       .read = read_nf4,
                       .to_f32 = nf4_to_f32,
                       .is_tame = nf4_is_tame},
    [QUANTISED_FP8] = {.name = "FP8 (128x128)",
                       .kept = "fp8",
                       .suffixes = {"_scale_inv"},
                       .read = read_fp8,
                       .to_f32 = fp8_to_f32,
                       .is_tame = fp8_is_tame},
    [QUANTISED_NVFP4] = {.name = "NVFP4 (ModelOpt)",
                         .kept = "nvfp4",
                         .suffixes = {"_scale", "_scale_2"},
                         .ignored = {".input_scale", ".k_scale", ".v_scale"},
                         .read = read_nvfp4,
                         .to_f32 = nvfp4_to_f32,
                         .is_tame = nvfp4_is_tame},
};

const char *quantised_name(QuantisedFormat format)
{
    return formats[format].name;
}

/* Whether the name ends with one of the suffixes; *out_len: length of the name before it. */
static bool has_suffix(const char *name, const char *const suffixes[MOST_SUFFIXES], size_t *out_len)
{
    size_t len = strlen(name);
    for (int i = 0; i < MOST_SUFFIXES && suffixes[i]; i++) {
        size_t tail = strlen(suffixes[i]);
        if (len <= tail || strcmp(name + len - tail, suffixes[i]) != 0) continue;
        *out_len = len - tail;
        return true;
    }
    return false;
}

/* Whether the tensor is a part read together with its codes, or isn't read at all. */
static bool is_part(const Reader *r, const Format *format, const char *name)
{
    size_t len;
    if (has_suffix(name, format->ignored, &len)) return true;
    return has_suffix(name, format->suffixes, &len) && st_find(r->file, arena_strndup(r->arena, name, len));
}

/* Whether the tensor holds codes: its dtype isn't a float, or the part with the first suffix exists. */
static bool is_codes(const Reader *r, const Format *format, const StTensor *tensor)
{
    return !st_dtype_is_float(tensor->dtype) || st_find(r->file, arena_printf(r->arena, "%s%s", tensor->name, format->suffixes[0]));
}

static Status make_tensor(const Reader *r, QuantisedFormat format, const StTensor *codes, StTensor *out)
{
    QuantisedTensor *q = arena_new(r->arena, QuantisedTensor);
    q->made = (StMade){.parts = q->parts, .num_parts = 2, .to_f32 = formats[format].to_f32, .is_tame = formats[format].is_tame};
    q->format = format;
    q->map = r->map;
    q->parts[QUANTISED_CODES] = *codes;
    TRY(formats[format].read(r, codes, q));
    *out = (StTensor){.name = codes->name,
                      .dtype = r->as,
                      .ndim = 2,
                      .dim = {q->rows, q->cols},
                      .numel = q->rows * q->cols,
                      .path = codes->path,
                      .made = &q->made};
    return OK;
}

Status quantised_open(Arena *arena, StFile *file, QuantisedFormat format, StDType as)
{
    if (format == QUANTISED_NONE) return OK;
    DynamicMap *map = arena_new(arena, DynamicMap);
    Reader      r = {.arena = arena, .file = file, .map = map, .as = as};
    size_t      count = 0;
    StTensor   *tensors = arena_array(arena, StTensor, st_count(file) + 1);
    dynamic_map_fill(map, true);
    for (size_t i = 0; i < st_count(file); i++) {
        const StTensor *tensor = st_at(file, i);
        if (is_part(&r, &formats[format], tensor->name)) continue;
        if (is_codes(&r, &formats[format], tensor))
            TRY(make_tensor(&r, format, tensor, &tensors[count++]));
        else
            tensors[count++] = *tensor;
    }
    return st_set_tensors(file, tensors, count);
}

const QuantisedTensor *quantised_of(const StTensor *tensor)
{
    for (size_t i = QUANTISED_NONE + 1; i < sizeof formats / sizeof *formats; i++)
        if (tensor->made && tensor->made->to_f32 == formats[i].to_f32) return (const QuantisedTensor *)tensor->made;
    return NULL;
}

const WeightFormat *quantised_weight_format(const QuantisedTensor *q)
{
    bool is_once = q->format == QUANTISED_NF4 && q->made.num_parts == 2;
    return weight_format_find(is_once ? "nf4_once" : formats[q->format].kept);
}

const void *quantised_part(const QuantisedTensor *q, int k, float **scratch)
{
    const StTensor *part = &q->parts[k];
    if (k == q->made.num_parts) return &q->offset;
    if (q->format != QUANTISED_FP8 || k != QUANTISED_SCALES || part->dtype == ST_F32) return part->data;
    *scratch = realloc_or_end(*scratch, (size_t)part->numel * sizeof **scratch);
    Status status = st_to_f32(part, 0, part->numel, *scratch);
    CHECK(status == OK); /* can't fail: scales have a float dtype */
    return *scratch;
}

/* ---- parts of other numbers ---- */

const StTensor *quantised_owner(const StFile *file, QuantisedFormat format, const char *stored, int *out_part)
{
    SCOPED_ARENA(arena);
    const StTensor *owner = st_find(file, stored);
    size_t          len;
    if (!owner && has_suffix(stored, formats[format].suffixes, &len)) owner = st_find(file, arena_strndup(&arena, stored, len));
    const QuantisedTensor *q = owner ? quantised_of(owner) : NULL;
    *out_part = -1;
    for (int k = 0; q && k < q->made.num_parts; k++)
        if (strcmp(q->parts[k].name, stored) == 0) *out_part = k;
    size_t tail = strlen(nf4_state), all = strlen(stored);
    bool   is_state = q && q->format == QUANTISED_NF4 && all > tail && strcmp(stored + all - tail, nf4_state) == 0;
    if (is_state && q->made.num_parts == 3) *out_part = 3; /* the state holds the offset */
    return q ? owner : NULL;
}

enum { OFFSET_ROOM = 32 }; /* bytes: enough for a number in JSON */

void quantised_declare(const QuantisedTensor *q, int part, StDecl *decl)
{
    if (part == q->made.num_parts) decl->dim[0] += OFFSET_ROOM;
    if (q->format == QUANTISED_FP8 && part == QUANTISED_SCALES) decl->dtype = ST_F32;
}

/* Appends the state with another offset, filled up with spaces to the declared length. */
static Status append_state(const StTensor *stored, float offset, FileWriter *out)
{
    SCOPED_ARENA(arena);
    SCOPED_STRBUF(text);
    JsonValue state;
    size_t    bytes = stored->bytes + OFFSET_ROOM;
    TRY(json_parse(&arena, stored->name, stored->data, stored->bytes, &state));
    if (json_get(&state, "nested_offset"))
        json_set(&state, str_of("nested_offset"), (JsonValue){.type = JSON_DOUBLE, .number = (double)offset});
    json_write(&text, &state, -1);
    FAIL_IF(text.len > bytes, ERR_UNSUPPORTED, "%s: tensor %s holds text that gets too long when it is written anew", stored->path,
            stored->name);
    while (text.len < bytes) strbuf_putc(&text, ' ');
    return file_writer_append(out, text.data, bytes);
}

Status quantised_append(const QuantisedTensor *q, const StTensor *stored, int part, const void *data, FileWriter *out)
{
    if (part == q->made.num_parts) return append_state(stored, *(const float *)data, out);
    StDecl decl = st_decl(stored->name, stored->dtype, stored->ndim, stored->dim, false);
    quantised_declare(q, part, &decl);
    return file_writer_append(out, data, st_decl_bytes(&decl));
}

/* ---- what config.json says ---- */

#define READ_FORMATS \
    "read are bitsandbytes (load_in_4bit, bnb_4bit_quant_type nf4), fp8 (e4m3, weight_block_size [128, 128]) and modelopt (NVFP4); take the " \
    "unquantised model, or convert this one"

static Status parse_bitsandbytes(const JsonValue *config, const char *path)
{
    bool        four = false, eight = false;
    const char *type = "fp4"; /* bitsandbytes' default */
    json_get_bool(config, "load_in_4bit", &four);
    json_get_bool(config, "load_in_8bit", &eight);
    json_get_str(config, "bnb_4bit_quant_type", &type);
    FAIL_IF(eight || !four, ERR_UNSUPPORTED, "%s: the model is quantised by bitsandbytes to 8 bits (load_in_8bit); " READ_FORMATS, path);
    FAIL_IF(strcmp(type, "nf4") != 0, ERR_UNSUPPORTED,
            "%s: the model is quantised by bitsandbytes to %.40s (bnb_4bit_quant_type); " READ_FORMATS, path, type);
    return OK;
}

static Status parse_fp8(const JsonValue *config, const char *path)
{
    const JsonValue *block = json_get(config, "weight_block_size");
    const char      *scheme = "dynamic", *format = "e4m3";
    json_get_str(config, "activation_scheme", &scheme);
    json_get_str(config, "fmt", &format);
    bool tiles = block && block->type == JSON_ARRAY && block->count == 2 && block->items[0].type == JSON_INT &&
                 block->items[1].type == JSON_INT && block->items[0].integer == FP8_TILE && block->items[1].integer == FP8_TILE;
    if (!tiles) {
        SCOPED_STRBUF(text);
        if (block) json_write(&text, block, -1);
        return status_fail(ERR_UNSUPPORTED, "%s: the model is quantised to fp8 with weight_block_size %.60s; " READ_FORMATS, path,
                           block ? strbuf_cstr(&text) : "not set");
    }
    FAIL_IF(strcmp(format, "e4m3") != 0 || strcmp(scheme, "dynamic") != 0, ERR_UNSUPPORTED,
            "%s: the model is quantised to fp8 with fmt %.40s and activation_scheme %.40s, which must be e4m3 and dynamic; " READ_FORMATS,
            path, format, scheme);
    return OK;
}

static Status parse_modelopt(const JsonValue *config, const char *path)
{
    const JsonValue *inner = json_get(config, "quantization"); /* as in hf_quant_config.json */
    const char      *algorithm = "(none)";
    json_get_str(inner ? inner : config, "quant_algo", &algorithm);
    FAIL_IF(strcmp(algorithm, "NVFP4") != 0, ERR_UNSUPPORTED, "%s: the model is quantised by modelopt to %.40s (quant_algo); " READ_FORMATS,
            path, algorithm);
    return OK;
}

Status quantised_parse(const JsonValue *config, const char *path, QuantisedFormat *out)
{
    static const struct {
        const char     *method;
        QuantisedFormat format;
        Status (*parse)(const JsonValue *config, const char *path);
    } methods[] = {
        {"bitsandbytes", QUANTISED_NF4, parse_bitsandbytes},
        {"fp8", QUANTISED_FP8, parse_fp8},
        {"modelopt", QUANTISED_NVFP4, parse_modelopt},
    };
    const JsonValue *producer = json_get(config, "producer");
    const char      *method = "(none)";
    if (json_get(config, "load_in_4bit") || json_get(config, "load_in_8bit")) method = "bitsandbytes"; /* older: no quant_method key */
    if (producer) json_get_str(producer, "name", &method);
    json_get_str(config, "quant_method", &method);
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        if (strcmp(method, methods[i].method) != 0) continue;
        *out = methods[i].format;
        return methods[i].parse(config, path);
    }
    FAIL(ERR_UNSUPPORTED, "%s: the model is quantised with quant_method %.60s; " READ_FORMATS, path, method);
}
