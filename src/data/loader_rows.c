/* Builds rows from documents. A row is a list of spans; everything else (filling, counting) walks that list. */
#include "data/loader_rows.h"

#include "base/array.h"
#include "base/philox.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int64_t permute_index(int64_t index, int64_t count, uint64_t seed, uint64_t epoch)
{
    CHECK(index >= 0 && index < count);
    /* A Feistel network on the least even number of bits that holds count; a result >= count goes through it again (cycle walking). */
    int half = 1;
    while (half < 31 && ((int64_t)1 << (2 * half)) < count) half++;
    uint32_t mask = (uint32_t)(((uint64_t)1 << half) - 1);
    uint64_t at = (uint64_t)index;
    do {
        uint32_t left = (uint32_t)(at >> half), right = (uint32_t)at & mask;
        for (uint32_t round = 0; round < 6; round++) {
            Philox4  draw = philox4x32(right, round, (uint32_t)epoch, (uint32_t)(epoch >> 32), seed);
            uint32_t next = left ^ (draw.v[0] & mask);
            left = right;
            right = next;
        }
        at = (uint64_t)left << half | right;
    } while (at >= (uint64_t)count);
    return (int64_t)at;
}

static void spans_push(SpanList *list, Span span)
{
    list->data = array_room(list->data, (size_t)list->len + 1, &list->capacity, sizeof *list->data);
    list->data[list->len++] = span;
}

/* Counts the set bits in [begin, end). */
static int64_t count_bits(const uint64_t *words, int64_t begin, int64_t end)
{
    if (begin >= end) return 0;
    int64_t  first = begin >> 6, last = (end - 1) >> 6;
    uint64_t head = ~(uint64_t)0 << (begin & 63), tail = ~(uint64_t)0 >> (63 - ((end - 1) & 63));
    if (first == last) return __builtin_popcountll(words[first] & head & tail);
    int64_t sum = __builtin_popcountll(words[first] & head) + __builtin_popcountll(words[last] & tail);
    for (int64_t i = first + 1; i < last; i++) sum += __builtin_popcountll(words[i]);
    return sum;
}

/* Counts the trained labels of a span. Its labels are all its tokens but the first and, if span->more, the token after the span. */
static int64_t span_trained(const ShardSet *set, const Span *span)
{
    const uint64_t *mask = shard_mask(set->shards[span->shard]);
    int64_t         begin = span->begin + 1, end = span->begin + span->count + span->more;
    return mask ? count_bits(mask, begin, end) : end - begin;
}

/* ---- the validation split ---- */

static double split_draw(uint64_t seed, int source, int64_t document)
{
    Philox4 draw = philox4x32((uint32_t)document, (uint32_t)((uint64_t)document >> 32), (uint32_t)source, 0x53504c54u, seed);
    return (double)(((uint64_t)draw.v[0] << 21) ^ (draw.v[1] >> 11)) * 0x1p-53;
}

/* Documents whose draw is below this threshold are validation. The threshold is the ratio, moved when needed so that neither side is
 * empty. */
static double split_threshold(const LoaderOptions *options, int source, int64_t num_documents)
{
    double least = 1, most = 0, ratio = options->validation_ratio;
    for (int64_t i = 0; i < num_documents; i++) {
        double draw = split_draw(options->seed, source, i);
        least = draw < least ? draw : least;
        most = draw > most ? draw : most;
    }
    if (least >= ratio) return nextafter(least, 2);
    return most < ratio ? most : ratio;
}

/* ---- spans ---- */

typedef struct Cutter {
    const LoaderOptions *options;
    LoaderStats         *stats;
    SourceRows          *source;
    int64_t              document_begin; /* first token of the document being cut */
    int64_t              next_id;        /* counts the samples of both sides of the split, so that the split changes no id */
} Cutter;

static void keep_sample(Cutter *cutter, Span span, bool keep)
{
    span.id = (int32_t)(cutter->next_id++ & INT32_MAX);
    if (!keep) return;
    /* A later piece of a text: its first token is a label of the piece before. */
    bool is_tail = !cutter->source->shards->has_mask && span.begin > cutter->document_begin;
    if (span_trained(cutter->source->shards, &span) == 0)
        cutter->stats->num_dropped_empty += !is_tail;
    else
        spans_push(&cutter->source->spans, span);
}

/* Cuts a document into samples of at most seq_len tokens. Text is always split: no token is lost. keep false: only counts the samples'
 * ids. */
static void cut_document(Cutter *cutter, Span whole, bool keep)
{
    int32_t      most = cutter->options->seq_len;
    LoaderStats *stats = cutter->stats;
    cutter->document_begin = whole.begin;
    if (whole.count <= most) {
        keep_sample(cutter, whole, keep);
        return;
    }
    switch (cutter->source->shards->has_mask ? cutter->options->long_samples : LONG_SPLIT) {
    case LONG_TRUNCATE:
        stats->num_truncated += keep;
        stats->tokens_cut += keep ? whole.count - most : 0;
        whole.count = most;
        keep_sample(cutter, whole, keep);
        return;
    case LONG_DROP:
    case LONG_ERROR: /* rows_init turns the count into an error */
        stats->num_dropped_long += keep;
        stats->tokens_cut += keep ? whole.count : 0;
        cutter->next_id++;
        return;
    case LONG_SPLIT:
        stats->num_split += keep;
        for (int64_t done = 0; done < whole.count; done += most) {
            Span part = whole;
            part.begin += done;
            part.count = whole.count - done < most ? whole.count - done : most;
            part.more = done + part.count < whole.count;
            keep_sample(cutter, part, keep);
        }
        return;
    }
}

/* A single text can't be split by documents: its last tokens, a share of validation_ratio, are validation. */
static Span split_single(const LoaderOptions *options, Span whole)
{
    int64_t held_out = (int64_t)ceil((double)whole.count * options->validation_ratio);
    if (held_out >= whole.count) held_out = whole.count - 1;
    if (options->part == LOADER_VALIDATION) whole.begin += whole.count - held_out;
    whole.count = options->part == LOADER_VALIDATION ? held_out : whole.count - held_out;
    return whole;
}

static void cut_source(Cutter *cutter, int source)
{
    const LoaderOptions *options = cutter->options;
    const ShardSet      *set = cutter->source->shards;
    bool                 is_split = options->part != LOADER_ALL && options->validation_ratio > 0;
    bool                 is_single = is_split && !set->has_mask && set->num_documents == 1;
    double               threshold = is_split && set->num_documents > 1 ? split_threshold(options, source, set->num_documents) : 0;
    int64_t              document = 0;
    for (int s = 0; s < set->num_shards; s++) {
        int64_t count = shard_info(set->shards[s])->num_documents;
        for (int64_t i = 0; i < count; i++, document++) {
            Span whole = {.shard = s};
            shard_document(set->shards[s], i, &whole.begin, &whole.count);
            bool is_validation = is_split && !is_single && split_draw(options->seed, source, document) < threshold;
            bool keep = options->part == LOADER_ALL || is_single || is_validation == (options->part == LOADER_VALIDATION);
            cutter->stats->num_documents += keep;
            int64_t num_spans = cutter->source->spans.len;
            if (is_single) whole = split_single(options, whole);
            if (options->mode != LOADER_STREAM)
                cut_document(cutter, whole, keep);
            else if (keep)
                spans_push(&cutter->source->spans, whole);
            cutter->stats->num_used += cutter->source->spans.len > num_spans;
        }
    }
}

/* ---- rows ---- */

static void stream_rows(SourceRows *source, int32_t seq_len)
{
    int64_t n = source->spans.len;
    source->offset = calloc_or_end((size_t)n + 1, sizeof *source->offset);
    for (int64_t i = 0; i < n; i++) source->offset[i + 1] = source->offset[i] + source->spans.data[i].count;
    source->num_rows = (source->offset[n] + seq_len - 1) / seq_len;
}

static void packed_rows(SourceRows *source, int32_t seq_len)
{
    int64_t  n = source->spans.len;
    int32_t *lengths = malloc_or_end(sizeof *lengths * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) lengths[i] = (int32_t)source->spans.data[i].count;
    pack_best_fit(lengths, n, seq_len, &source->packing);
    free(lengths);
    source->num_rows = source->packing.num_rows;
}

/* Walks the spans of a row in order, until walk_next gives false. */
typedef struct RowWalk {
    const SourceRows *source;
    const int64_t    *items;       /* indices of spans (of Drawn.items if drawn); NULL: spans next..end in order */
    int64_t           next, end;   /* indices in `items`, or in spans if `items` is NULL */
    int64_t           begin, stop; /* LOADER_STREAM: token offsets of the row */
} RowWalk;

static RowWalk walk_packed(const SourceRows *source, const Packing *packing, int64_t row)
{
    return (RowWalk){.source = source, .items = packing->items, .next = packing->begin[row], .end = packing->begin[row + 1]};
}

/* For drawn rows this takes the lock; walk_end releases it. */
static RowWalk walk_begin(Rows *rows, const RowPlace *place, const Drawn **out_drawn)
{
    const SourceRows *source = &rows->sources[place->source];
    *out_drawn = NULL;
    if (rows->options.mode == LOADER_PADDED) return (RowWalk){.source = source, .next = place->row, .end = place->row + 1};
    if (place->epoch >= 0) {
        pthread_mutex_lock(&rows->lock);
        *out_drawn = rows_drawn(rows, place->source, place->epoch);
        return walk_packed(source, &(*out_drawn)->packing, place->row);
    }
    if (rows->options.mode == LOADER_PACKED) return walk_packed(source, &source->packing, place->row);
    int64_t begin = place->row * rows->options.seq_len, low = 0, high = source->spans.len;
    while (high - low > 1) { /* finds the last span whose offset is <= begin */
        int64_t middle = low + (high - low) / 2;
        if (source->offset[middle] <= begin)
            low = middle;
        else
            high = middle;
    }
    return (RowWalk){.source = source, .next = low, .end = source->spans.len, .begin = begin, .stop = begin + rows->options.seq_len};
}

static void walk_end(Rows *rows, const Drawn *drawn)
{
    if (drawn) pthread_mutex_unlock(&rows->lock);
}

static bool walk_next(const Rows *rows, RowWalk *walk, const Drawn *drawn, Span *out)
{
    const SourceRows *source = walk->source;
    if (walk->next >= walk->end) return false;
    int64_t at = walk->next++;
    if (rows->options.mode != LOADER_STREAM) {
        if (walk->items) at = walk->items[at];
        *out = source->spans.data[drawn ? drawn->items[at] : at];
        return true;
    }
    if (source->offset[at] >= walk->stop) return false;
    int64_t begin = source->offset[at] > walk->begin ? source->offset[at] : walk->begin;
    int64_t stop = source->offset[at + 1] < walk->stop ? source->offset[at + 1] : walk->stop;
    *out = source->spans.data[at];
    out->begin += begin - source->offset[at];
    out->count = stop - begin;
    out->more = stop < source->offset[at + 1];
    out->id = (int32_t)((source->id_base + begin) & INT32_MAX);
    return true;
}

int64_t rows_count_trained(Rows *rows, const RowPlace *place)
{
    const Drawn *drawn;
    RowWalk      walk = walk_begin(rows, place, &drawn);
    int64_t      sum = 0;
    for (Span span; walk_next(rows, &walk, drawn, &span);) sum += span_trained(walk.source->shards, &span);
    walk_end(rows, drawn);
    return sum;
}

void rows_fill_padding(const Rows *rows, Feeds *batch, int64_t b, int64_t from)
{
    int64_t seq = rows->options.seq_len;
    feeds_pad(batch, b, seq, from, rows->options.pad_id);
    for (int i = 0; i < rows->options.num_inputs; i++) {
        const OwnInput *input = &rows->inputs[i];
        int32_t        *cells = batch->array[FEED_COUNT + i];
        for (int64_t k = (b * seq + from) * input->size; cells && k < (b + 1) * seq * input->size; k++) cells[k] = input->pad;
    }
}

/* Fills the cells of a span for one input; `cells` is the cell of its first token. A cell is padding if the data has no number for it, or
 * if its token has no label. */
static void fill_own(const Shard *shard, const Span *span, const OwnInput *input, int column, int32_t *cells)
{
    float  *numbers = (float *)cells; /* for an i32 input the floats are converted in place */
    int64_t n = span->count, from = span->begin, given = n;
    if (input->of_target) {
        from++;
        given = n - 1 + span->more;
    }
    if (column < 0) given = 0;
    if (given) shard_read_column(shard, column, from, given, numbers);
    for (int64_t k = 0; k < n * input->size; k++) {
        float number = k < given * input->size ? numbers[k] : NAN;
        if (input->dtype == DT_F32)
            numbers[k] = isnan(number) ? 0 : number;
        else
            cells[k] = isnan(number) ? input->pad : (int32_t)number;
    }
}

static Status fill_span(const Rows *rows, const SourceRows *source, const Span *span, Feeds *batch, int64_t b, int64_t t)
{
    const Shard    *shard = source->shards->shards[span->shard];
    const uint64_t *mask = shard_mask(shard);
    int64_t         i = b * rows->options.seq_len + t, n = span->count;
    int32_t         after = 0;
    TRY(shard_read(shard, span->begin, n, batch->tokens + i));
    if (span->more) TRY(shard_read(shard, span->begin + n, 1, &after));
    for (int64_t k = 0; k < n; k++) {
        batch->positions[i + k] = (int32_t)k;
        batch->doc_start[i + k] = (int32_t)t;
        batch->doc_id[i + k] = span->id;
    }
    for (int k = 0; k < rows->options.num_inputs; k++) {
        int32_t *cells = batch->array[FEED_COUNT + k];
        if (cells) fill_own(shard, span, &rows->inputs[k], source->columns[k], cells + i * rows->inputs[k].size);
    }
    memcpy(batch->labels + i, batch->tokens + i + 1, sizeof *batch->labels * (size_t)(n - 1));
    batch->labels[i + n - 1] = span->more ? after : LABEL_IGNORE;
    int64_t num_labels = n - 1 + span->more, trained = num_labels;
    if (mask) {
        trained = 0;
        for (int64_t k = 0; k < num_labels; k++) {
            bool is_trained = mask_bit(mask, span->begin + 1 + k);
            trained += is_trained;
            batch->labels[i + k] = is_trained ? batch->labels[i + k] : LABEL_IGNORE;
        }
    }
    batch->num_tokens += n;
    batch->num_trained += trained;
    return OK;
}

Status rows_fill(Rows *rows, const RowPlace *place, Feeds *batch, int64_t b)
{
    const Drawn *drawn;
    RowWalk      walk = walk_begin(rows, place, &drawn);
    int64_t      t = 0;
    Status       status = OK;
    for (Span span; status == OK && walk_next(rows, &walk, drawn, &span); t += span.count)
        status = fill_span(rows, walk.source, &span, batch, b, t);
    walk_end(rows, drawn);
    TRY(status);
    rows_fill_padding(rows, batch, b, t);
    return OK;
}

/* ---- building ---- */

static Status source_init(Rows *rows, int s, const LoaderSource *from, int64_t *next_id, int64_t *id_base)
{
    const LoaderOptions *options = &rows->options;
    const char          *name = from->name ? from->name : "data";
    SourceRows          *source = &rows->sources[s];
    source->shards = from->shards;
    source->name = name;
    for (int i = 0; i < options->num_inputs; i++) {
        ShardColumn column;
        source->columns[i] = shard_set_column(from->shards, options->inputs[i].name, &column);
        FAIL_IF(source->columns[i] >= 0 && column.size != options->inputs[i].size, ERR_INVALID,
                "%s: its numbers for the input %s are %lld a token; expected %lld", name, options->inputs[i].name, (long long)column.size,
                (long long)options->inputs[i].size);
        bool is_whole = column.least > column.most || (!column.has_fractions && column.least >= -0x1p24 && column.most <= 0x1p24);
        FAIL_IF(source->columns[i] >= 0 && options->inputs[i].dtype == DT_I32 && !is_whole, ERR_INVALID,
                "%s: its numbers for the input %s are %g to %g%s; expected whole ones of at most 2^24", name, options->inputs[i].name,
                column.least, column.most, column.has_fractions ? ", with fractions" : "");
    }
    source->id_base = *id_base;
    *id_base += from->shards->num_tokens;
    FAIL_IF(options->vocab_size > 0 && from->shards->vocab_size > options->vocab_size, ERR_INVALID,
            "%s: tokenized with a vocabulary of %d, the model's embedding has %d rows", name, from->shards->vocab_size,
            options->vocab_size);
    FAIL_IF(from->shards->tokenizer_hash != rows->sources[0].shards->tokenizer_hash, ERR_INVALID,
            "%s: tokenized with another tokenizer than the data before it", name);
    FAIL_IF(!(from->weight >= 0) || from->weight > 1e6, ERR_INVALID, "%s: weight %g, want 0..1e6", name, from->weight);
    Cutter cutter = {.options = options, .stats = &rows->stats, .source = source, .next_id = *next_id};
    cut_source(&cutter, s);
    *next_id = cutter.next_id;
    if (options->mode == LOADER_STREAM)
        stream_rows(source, options->seq_len);
    else if (options->mode == LOADER_PACKED)
        packed_rows(source, options->seq_len);
    else
        source->num_rows = source->spans.len;
    double weight = from->weight > 0 ? from->weight : 1;
    source->whole_rows = (int64_t)floor(weight) * source->num_rows;
    source->fraction = weight - floor(weight);
    source->num_units = options->mode == LOADER_STREAM ? source->num_rows : source->spans.len;
    return OK;
}

static void count_rows(Rows *rows)
{
    LoaderStats *stats = &rows->stats;
    for (int s = 0; s < rows->num_sources; s++) {
        const SourceRows *source = &rows->sources[s];
        stats->num_rows += source->num_rows;
        for (int64_t i = 0; i < source->spans.len; i++) stats->num_tokens += source->spans.data[i].count;
        for (int64_t row = 0; row < source->num_rows; row++)
            stats->num_trained += rows_count_trained(rows, &(RowPlace){.source = s, .row = row, .epoch = -1});
    }
    double room = (double)stats->num_rows * rows->options.seq_len;
    stats->efficiency = room > 0 ? (double)stats->num_tokens / room : 1;
}

static Status check_options(const LoaderOptions *o)
{
    FAIL_IF(o->seq_len < 1, ERR_INVALID, "sequence_len is %d, want at least 1", o->seq_len);
    FAIL_IF(o->batch_size < 1, ERR_INVALID, "batch size is %d, want at least 1", o->batch_size);
    FAIL_IF(!(o->validation_ratio >= 0 && o->validation_ratio < 1), ERR_INVALID, "validation_split_ratio is %g, want 0 <= ratio < 1",
            o->validation_ratio);
    FAIL_IF(o->part == LOADER_VALIDATION && o->validation_ratio == 0, ERR_INVALID, "no validation data: validation_split_ratio is 0");
    CHECK(o->rank >= 0 && o->rank < o->world_size && o->num_epochs >= 0);
    return OK;
}

/* Is there anything to learn from? */
static Status check_rows(const Rows *rows)
{
    const LoaderOptions *options = &rows->options;
    const LoaderStats   *stats = &rows->stats;
    const char          *part = options->part == LOADER_VALIDATION ? "validation" : "training";
    int64_t              num_long = stats->num_truncated + stats->num_split + stats->num_dropped_long;
    FAIL_IF(options->long_samples == LONG_ERROR && stats->num_dropped_long > 0, ERR_INVALID,
            "%" PRId64 " of %" PRId64 " samples are longer than sequence_len %d; raise it, or set on_long_sample: truncate, split or drop "
            "(surogate inspect shows how long rows are)",
            stats->num_dropped_long, stats->num_documents, options->seq_len);
    FAIL_IF(rows->total == 0 && stats->num_trained > 0, ERR_INVALID,
            "%s: its weight is so small that not one of its samples comes in the whole run: raise weight", rows->sources[0].name);
    FAIL_IF(stats->num_trained == 0, ERR_INVALID,
            "no %s data left: %" PRId64 " documents, %" PRId64 " without a trained token%s, %" PRId64
            " longer than sequence_len %d; nothing to learn from. %s",
            part, stats->num_documents, stats->num_dropped_empty, stats->num_truncated ? " (once cut)" : "", num_long, options->seq_len,
            num_long == stats->num_documents && num_long > 0 ? "Raise sequence_len"
            : options->part == LOADER_VALIDATION             ? "Raise validation_split_ratio, or name validation_datasets"
            : options->part == LOADER_TRAIN                  ? "Lower validation_split_ratio, or give more data"
                                                             : "Give more data, or raise sequence_len");
    return OK;
}

Status rows_init(Rows *rows, const LoaderOptions *options, const LoaderSource *sources, int num_sources)
{
    rows->options = *options;
    pthread_mutex_init(&rows->lock, NULL);
    if (rows->options.world_size == 0) rows->options.world_size = 1;
    if (rows->options.grad_accum_steps == 0) rows->options.grad_accum_steps = 1;
    TRY(check_options(&rows->options));
    CHECK(num_sources > 0);
    rows->sources = calloc_or_end((size_t)num_sources, sizeof *rows->sources);
    rows->num_sources = num_sources;
    int64_t next_id = 0, id_base = 0;
    for (int s = 0; s < num_sources; s++) TRY(source_init(rows, s, &sources[s], &next_id, &id_base));
    if (options->num_inputs) memcpy(rows->inputs, options->inputs, sizeof *rows->inputs * (size_t)options->num_inputs);
    count_rows(rows);
    rows_plan_epochs(rows);
    return check_rows(rows);
}

void rows_deinit(Rows *rows)
{
    for (int s = 0; s < rows->num_sources; s++) {
        free(rows->sources[s].spans.data);
        free(rows->sources[s].offset);
        packing_deinit(&rows->sources[s].packing);
        for (int i = 0; i < KEPT_DRAWS; i++) {
            free(rows->sources[s].drawn[i].items);
            packing_deinit(&rows->sources[s].drawn[i].packing);
        }
    }
    free(rows->sources);
    free(rows->starts.data);
    pthread_mutex_destroy(&rows->lock);
    *rows = (Rows){0};
}
