/* See head_decoder.h. Programs are compiled for row counts that are powers of two and for the largest one, each for every hidden dtype.
 * A batch runs in the smallest program that holds it; the program's other rows are ignored. */
#include "infer/head_decoder.h"

#include "ops/attrs.h"
#include "ops/products/head_rows.h"
#include "ops/sample/sample.h"
#include "passes/compile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_POWER = 256, ROWS_NUMEL = 1 << 20, NAME_BYTES = 32 };

static const DType hidden_dtypes[] = {DT_F32, DT_BF16, DT_F16};
enum { NUM_HIDDEN = sizeof hidden_dtypes / sizeof hidden_dtypes[0] };

struct HeadDecoder {
    HeadDecoderOptions options;
    Arena              arena;
    Plan              *plan;
    Session           *session;
    const int32_t     *told; /* (HEAD_RING, rows): the ids that runs chose */
    int32_t           *keys; /* (rows, SAMPLE_KEYS): random keys */
    int64_t            num_runs, num_told;
    int64_t            run_rows[HEAD_IN_FLIGHT];
};

/* ---- checks ---- */

static Status check_dtype(DType dtype, DTypeSet among, const char *what)
{
    FAIL_IF(!(DT_SET(dtype) & among), ERR_INVALID, "%s: dtype %s; expected f32, bf16%s", what, dtype_info(dtype)->name,
            among & DT_SET(DT_I8) ? ", f16 or i8" : " or f16");
    return OK;
}

static Status check_matrix(const HeadDecoderOptions *o)
{
    const HeadMatrix *m = &o->matrix;
    const DTypeSet    kept = DT_SET_DECODE | DT_SET(DT_I8);
    FAIL_IF(o->vocab < 1 || o->vocab > INT32_MAX, ERR_INVALID, "vocab %lld; expected 1 to %d", (long long)o->vocab, INT32_MAX);
    FAIL_IF(o->dim < 1 || o->dim > HEAD_MOST_DIM, ERR_INVALID, "dim %lld; expected 1 to %d", (long long)o->dim, HEAD_MOST_DIM);
    FAIL_IF(!m->data, ERR_INVALID, "the matrix is NULL");
    TRY(check_dtype(m->dtype, kept, "the matrix"));
    TRY(check_dtype(o->dtype, kept, "what the matrix is kept in"));
    FAIL_IF((m->dtype == DT_I8) != (m->scale != NULL), ERR_INVALID, "a matrix of %s %s scales; expected scales with i8 alone",
            dtype_info(m->dtype)->name, m->scale ? "with" : "without");
    FAIL_IF(m->dtype == DT_I8 && o->dtype != DT_I8, ERR_INVALID, "a matrix of i8 is kept as it is, not in %s", dtype_info(o->dtype)->name);
    return OK;
}

static Status check_options(const HeadDecoderOptions *o)
{
    TRY(check_matrix(o));
    FAIL_IF(o->rows < 1 || o->rows > HEAD_MOST_ROWS, ERR_INVALID, "batches of %lld rows; expected 1 to %d", (long long)o->rows,
            HEAD_MOST_ROWS);
    FAIL_IF((unsigned)o->strategy > HEAD_BY_TOP_P, ERR_INVALID, "strategy %d; expected 0 to %d", (int)o->strategy, HEAD_BY_TOP_P);
    if (o->strategy != HEAD_GREEDY)
        FAIL_IF(!(o->temperature > 0 && o->temperature <= 1e6), ERR_INVALID,
                "temperature %g; expected a number above 0; greedy is a strategy", o->temperature);
    if (o->strategy == HEAD_BY_TOP_K) FAIL_IF(o->top_k < 1, ERR_INVALID, "top_k %lld; expected at least 1", (long long)o->top_k);
    if (o->strategy == HEAD_BY_TOP_P)
        FAIL_IF(!(o->top_p > 0 && o->top_p <= 1), ERR_INVALID, "top_p %g; expected above 0, at most 1", o->top_p);
    return OK;
}

/* ---- the matrix ---- */

/* One piece of this device's share: rows [first, first + count) of the whole matrix, and its parameters' names. */
typedef struct Piece {
    int64_t first, count;
    char    weight[NAME_BYTES], scale[NAME_BYTES], bias[NAME_BYTES];
} Piece;

static void name_part(char *out, const char *name, int piece)
{
    snprintf(out, NAME_BYTES, piece ? "%s.%d" : "%s", name, piece);
}

static Piece piece_of(const HeadDecoderOptions *o, int p)
{
    int     world = o->world ? o->world : 1;
    int64_t share = head_share(o->vocab, world), before = share * ((int64_t)p * world + o->rank);
    Piece   piece = {.first = before < o->vocab ? before : o->vocab};
    piece.count = o->vocab - piece.first < share ? o->vocab - piece.first : share;
    name_part(piece.weight, HEAD_WEIGHT, p);
    name_part(piece.scale, HEAD_WEIGHT_SCALE, p);
    name_part(piece.bias, HEAD_WEIGHT_BIAS, p);
    return piece;
}

/* Reads the source matrix from host memory. */
typedef struct Reader {
    const HeadDecoderOptions *options;
    const char               *data;
    float                    *rows, *part; /* rows: some rows as floats; part: one column of these rows */
    char                     *codes;       /* `rows`, encoded in the dtype of HeadDecoderOptions */
    float                    *scales;
    int64_t                   most; /* most rows read at once */
} Reader;

static void decode_from(const Reader *r, int64_t at, int64_t count, float *out)
{
    DType dtype = r->options->matrix.dtype;
    dtype_decode(dtype, r->data + dtype_bytes(dtype, at), count, out);
}

/* Reads rows [first, first + count) of the whole matrix into r->rows as floats. */
static void read_rows(const Reader *r, int64_t first, int64_t count)
{
    int64_t dim = r->options->dim;
    if (!r->options->matrix.by_columns) {
        decode_from(r, first * dim, count * dim, r->rows);
        return;
    }
    for (int64_t c = 0; c < dim; c++) {
        decode_from(r, c * r->options->vocab + first, count, r->part);
        for (int64_t i = 0; i < count; i++) r->rows[i * dim + c] = r->part[i];
    }
}

static Status check_rows(const Reader *r, int64_t first, int64_t count)
{
    int64_t dim = r->options->dim;
    DType   as = r->options->dtype == DT_I8 ? DT_F32 : r->options->dtype;
    int64_t at = dtype_first_unfit(as, r->rows, count * dim);
    FAIL_IF(at < count * dim, ERR_INVALID, "the matrix: row %lld, column %lld is %g; expected what %s holds", (long long)(first + at / dim),
            (long long)(at % dim), (double)r->rows[at], dtype_info(as)->name);
    return OK;
}

/* Scales the row so that its largest magnitude is 127; returns the scale. */
static float quantise_row(float *row, int64_t dim)
{
    float most = 0;
    for (int64_t i = 0; i < dim; i++) most = fmaxf(most, fabsf(row[i]));
    float scale = most > 0 ? most / 127 : 1;
    for (int64_t i = 0; i < dim; i++) row[i] /= scale;
    return scale;
}

static Status write_piece(const Reader *r, Session *session, const Piece *piece)
{
    const HeadDecoderOptions *o = r->options;
    bool                      quantised = o->dtype == DT_I8 && o->matrix.dtype != DT_I8;
    for (int64_t at = 0; at < piece->count; at += r->most) {
        int64_t first = piece->first + at, count = piece->count - at < r->most ? piece->count - at : r->most, numel = count * o->dim;
        read_rows(r, first, count);
        if (o->matrix.dtype != o->dtype) TRY(check_rows(r, first, count));
        for (int64_t i = 0; quantised && i < count; i++) r->scales[at + i] = quantise_row(r->rows + i * o->dim, o->dim);
        dtype_encode(o->dtype, r->rows, numel, r->codes);
        TRY(session_write_range(session, piece->weight, (size_t)dtype_bytes(o->dtype, at * o->dim), r->codes,
                                (size_t)dtype_bytes(o->dtype, numel)));
    }
    return quantised ? session_write_range(session, piece->scale, 0, r->scales, (size_t)piece->count * sizeof(float)) : OK;
}

/* Loads a piece whose source must be transposed, rounded or quantised. */
static Status convert_piece(const HeadDecoder *d, const Piece *piece)
{
    const HeadDecoderOptions *o = &d->options;
    Device                   *device = session_device(d->session);
    size_t                    bytes = (size_t)dtype_bytes(o->matrix.dtype, o->vocab * o->dim);
    char                     *copy = o->matrix.on_device ? malloc_or_end(bytes) : NULL;
    Reader                    r = {.options = o, .data = copy ? copy : o->matrix.data};
    r.most = o->dim < ROWS_NUMEL ? ROWS_NUMEL / o->dim : 1;
    r.rows = malloc_or_end((size_t)(r.most * o->dim) * sizeof(float));
    r.part = malloc_or_end((size_t)r.most * sizeof(float));
    r.codes = malloc_or_end((size_t)dtype_bytes(o->dtype, r.most * o->dim));
    r.scales = malloc_or_end(((size_t)piece->count + 1) * sizeof(float));
    Status status = copy ? device->api->download(device, copy, o->matrix.data, bytes) : OK;
    if (status == OK) status = write_piece(&r, d->session, piece);
    free(copy);
    free(r.rows);
    free(r.part);
    free(r.codes);
    free(r.scales);
    return status;
}

static Status load_piece(const HeadDecoder *d, const Piece *piece)
{
    const HeadDecoderOptions *o = &d->options;
    Session                  *session = d->session;
    size_t                    bytes = (size_t)dtype_bytes(o->dtype, piece->count * o->dim), row = (size_t)piece->count * sizeof(float);
    bool                      as_it_is = o->matrix.dtype == o->dtype && !o->matrix.by_columns;
    if (o->bias) TRY(session_write_range(session, piece->bias, 0, o->bias + piece->first, row));
    if (o->matrix.scale) TRY(session_write_range(session, piece->scale, 0, o->matrix.scale + piece->first, row));
    if (!as_it_is) return convert_piece(d, piece);
    const char *data = (const char *)o->matrix.data + dtype_bytes(o->dtype, piece->first * o->dim);
    if (!o->matrix.on_device) return session_write_range(session, piece->weight, 0, data, bytes);
    TRY(session_take(session, piece->weight, data, bytes));
    return session_sync(session);
}

/* Loads all pieces of this device. Rows beyond the vocabulary stay zero. */
static Status load_matrix(const HeadDecoder *d)
{
    const HeadDecoderOptions *o = &d->options;
    Device                   *device = session_device(d->session);
    if (o->matrix.on_device) TRY(device->api->settle(device));
    for (int p = 0; p < head_pieces(o->world ? o->world : 1); p++) {
        Piece piece = piece_of(o, p);
        TRY(load_piece(d, &piece));
    }
    return OK;
}

/* ---- opening ---- */

/* The next larger batch size that programs are compiled for. */
static int64_t more_rows(const HeadDecoderOptions *o, int64_t rows)
{
    return rows < MOST_POWER && rows * 2 < o->rows ? rows * 2 : o->rows;
}

static void add_programs(const HeadDecoderOptions *o, CompileOptions *compile)
{
    for (int64_t rows = 1, last = 0; rows > last; last = rows, rows = more_rows(o, rows))
        for (int h = 0; h < NUM_HIDDEN; h++)
            compile_add_spec(compile, (ProgramSpec){.entry = &entry_head, .batch = rows, .seq = 1, .hidden = hidden_dtypes[h]});
}

/* The smallest program for hidden states of this dtype that has at least `rows` rows. */
static const Program *find_program(const HeadDecoder *d, DType hidden, int64_t rows)
{
    const Program *least = NULL;
    for (int i = 0; i < d->plan->num_programs; i++) {
        const Program *program = &d->plan->programs[i];
        if (program->spec.hidden != hidden || program->spec.batch < rows) continue;
        if (!least || program->spec.batch < least->spec.batch) least = program;
    }
    return least;
}

/* Feeds the inputs that stay the same in all runs: how each row's id is chosen, and the constant parts of its random key. */
static Status feed_once(HeadDecoder *d)
{
    const HeadDecoderOptions *o = &d->options;
    Feeds                     feeds = {.keys = d->keys};
    feeds.controls = arena_array(&d->arena, float, o->rows *SAMPLE_CONTROLS);
    feeds.slots = arena_array(&d->arena, int32_t, o->rows);
    for (int64_t b = 0; b < o->rows; b++) {
        float   *controls = feeds.controls + b * SAMPLE_CONTROLS;
        int32_t *keys = d->keys + b * SAMPLE_KEYS;
        controls[SAMPLE_TEMPERATURE] = o->strategy == HEAD_GREEDY ? 0 : fmaxf((float)o->temperature, 1e-30f);
        controls[SAMPLE_TOP_K] = o->strategy == HEAD_BY_TOP_K ? (float)o->top_k : 0;
        controls[SAMPLE_TOP_P] = o->strategy == HEAD_BY_TOP_P ? (float)o->top_p : 1;
        controls[SAMPLE_REPETITION] = 1;
        keys[SAMPLE_SEED_LOW] = (int32_t)(uint32_t)o->seed;
        keys[SAMPLE_SEED_HIGH] = (int32_t)(uint32_t)(o->seed >> 32);
        keys[SAMPLE_NUMBER] = (int32_t)b;
        feeds.slots[b] = (int32_t)b;
    }
    return session_feed(d->session, find_program(d, DT_F32, o->rows), &feeds);
}

static Status open_session(HeadDecoder *d, Device *device)
{
    const HeadDecoderOptions *o = &d->options;
    CompileOptions            compile = compile_defaults();
    if (o->world) compile.rank = o->rank, compile.world = o->world;
    compile.head = (HeadOptions){o->vocab, o->dim, o->rows, o->dtype, o->bias != NULL};
    add_programs(o, &compile);
    TRY(compile_head(&d->arena, &compile, device, &d->plan));
    TRY(session_create(d->plan, device, &d->session));
    d->told = session_pointer(d->session, HEAD_TOLD);
    d->keys = arena_array(&d->arena, int32_t, o->rows * SAMPLE_KEYS);
    TRY(feed_once(d));
    return load_matrix(d);
}

Status head_decoder_create(const HeadDecoderOptions *options, Device *device, HeadDecoder **out)
{
    TRY(check_options(options));
    HeadDecoder *d = calloc_or_end(1, sizeof *d);
    d->options = *options;
    Status status = open_session(d, device);
    if (status != OK) {
        head_decoder_destroy(d);
        return status;
    }
    d->options.matrix = (HeadMatrix){0};
    d->options.bias = NULL;
    *out = d;
    return OK;
}

void head_decoder_destroy(HeadDecoder *d)
{
    if (!d) return;
    session_destroy(d->session);
    arena_deinit(&d->arena);
    free(d);
}

/* ---- batches ---- */

Status head_decoder_check_batch(const HeadDecoder *d, const void *hidden, DType dtype, int64_t rows)
{
    FAIL_IF(!hidden, ERR_INVALID, "hidden is NULL");
    TRY(check_dtype(dtype, DT_SET_DECODE, "hidden"));
    FAIL_IF(rows < 1 || rows > d->options.rows, ERR_INVALID, "a batch of %lld rows; this decoder takes 1 to %lld", (long long)rows,
            (long long)d->options.rows);
    FAIL_IF(head_decoder_in_flight(d) == HEAD_IN_FLIGHT, ERR_INVALID, "%d batches are in flight; ask for a result first", HEAD_IN_FLIGHT);
    return OK;
}

/* Feeds the random keys of this run. */
static Status feed_keys(HeadDecoder *d, const Program *program)
{
    Feeds feeds = {.keys = d->keys};
    if (d->options.strategy == HEAD_GREEDY) return OK;
    for (int64_t b = 0; b < program->spec.batch; b++) d->keys[b * SAMPLE_KEYS + SAMPLE_POSITION] = (int32_t)(uint32_t)d->num_runs;
    return session_feed(d->session, program, &feeds);
}

Status head_decoder_queue(HeadDecoder *d, const void *hidden, DType dtype, bool on_device, int64_t rows)
{
    char name[32];
    TRY(head_decoder_check_batch(d, hidden, dtype, rows));
    const Program *program = find_program(d, dtype, rows);
    size_t         bytes = (size_t)dtype_bytes(dtype, rows * d->options.dim);
    snprintf(name, sizeof name, HEAD_HIDDEN "%s", dtype_info(dtype)->name);
    if (on_device)
        TRY(session_take(d->session, name, hidden, bytes));
    else
        TRY(session_write_range(d->session, name, 0, hidden, bytes));
    TRY(feed_keys(d, program));
    TRY(session_run(d->session, program));
    d->run_rows[d->num_runs % HEAD_IN_FLIGHT] = rows;
    return session_mark_run(d->session, d->num_runs++);
}

int64_t head_decoder_waiting(const HeadDecoder *d)
{
    return d->num_runs > d->num_told ? d->run_rows[d->num_told % HEAD_IN_FLIGHT] : 0;
}

int head_decoder_in_flight(const HeadDecoder *d)
{
    return (int)(d->num_runs - d->num_told);
}

int64_t head_decoder_batches(const HeadDecoder *d)
{
    return d->num_runs;
}

Status head_decoder_result(HeadDecoder *d, int32_t *ids, int64_t rows)
{
    int64_t waiting = head_decoder_waiting(d), bad = rows;
    FAIL_IF(!waiting, ERR_INVALID, "no batch is in flight");
    FAIL_IF(rows != waiting, ERR_INVALID, "ids of %lld rows; the oldest batch has %lld", (long long)rows, (long long)waiting);
    TRY(session_await_run(d->session, d->num_told));
    const int32_t *told = d->told + d->num_told++ % HEAD_RING * d->options.rows;
    memcpy(ids, told, (size_t)rows * sizeof *ids);
    for (int64_t b = rows - 1; b >= 0; b--) bad = ids[b] < 0 ? b : bad;
    FAIL_IF(bad < rows, ERR_INVALID,
            "row %lld has no id: its logits hold NaN or +inf, or are -inf all; hidden states, matrix and bias are to be finite",
            (long long)bad);
    return OK;
}

Status head_decoder_skip(HeadDecoder *d)
{
    return session_await_run(d->session, d->num_told++);
}

const Session *head_decoder_session(const HeadDecoder *d)
{
    return d->session;
}
