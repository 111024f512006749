#include "data/inspect.h"

#include "base/array.h"
#include "data/mask.h"
#include "data/pack.h"
#include "data/split.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct Lengths {
    int32_t *data;
    int64_t  len;
    size_t   capacity;
} Lengths;

typedef struct Inspector {
    const TokenizeJob *job;
    InspectSummary    *summary;
    RowFormat          format;
    bool               has_format;
    MaskRules         *rules;
    MaskEncoder        encoder;
    Arena              arena;
    InspectPacking     packing;
    Lengths            lengths;         /* tokens of each sample, at most seq_len */
    int64_t            stream_tokens;   /* tokens of all texts, which are packed as one stream */
    bool               goes_on;         /* the last record's text continues in the next record */
    int64_t            part;            /* which part of its text the last record is, from 1; 0: it is a whole text */
    int64_t            tokens, trained; /* sums over the parts of a row so far */
} Inspector;

static void push_length(Lengths *lengths, int32_t length)
{
    lengths->data = array_room(lengths->data, (size_t)lengths->len + 1, &lengths->capacity, sizeof *lengths->data);
    lengths->data[lengths->len++] = length;
}

static Status encode_record(Inspector *in, const Record *record)
{
    const DatasetOptions *dataset = in->job->dataset;
    JsonValue             row;
    Sample                sample;
    TRY(record_parse(&in->arena, record, &row));
    Status status = OK;
    if (!in->has_format) status = format_detect(dataset, &row, &in->format);
    in->has_format |= status == OK;
    in->format.unused = &in->summary->unused;
    in->format.nulls_are_left_out = record->file->is_rows;
    if (status == OK) status = format_row(&in->arena, dataset, &in->format, &row, mask_rules_traits(in->rules), &sample);
    if (status == OK && in->format.type == DATASET_TEXT) {
        status = mask_encode_text(&in->encoder, sample.text, in->part <= 1, !record->continues);
    } else if (status == OK) {
        status = mask_encode(&in->encoder, &in->arena, &sample);
    }
    bool begins = in->part <= 1 && status == OK && in->encoder.ids.len > 0;
    if (begins) in->encoder.mask[0] = 0; /* no token predicts the first token: it is no label */
    if (status == OK) return OK;
    return status_prefix(status, record->file->is_rows ? "%s: row %lld" : "%s:%lld", record->file->path, (long long)record->line);
}

/* Adds a sample of `count` tokens, if it has a trained label. more: the token after the sample is the label of its last token. */
static void push_sample(Inspector *in, int64_t begin, int64_t count, bool more)
{
    int64_t end = begin + count + more;
    for (int64_t i = begin + 1; i < end; i++)
        if (in->encoder.mask[i]) {
            push_length(&in->lengths, (int32_t)count);
            return;
        }
}

/* Adds the samples of a text: all of its tokens are trained, except the first. */
static void cut_text(Inspector *in, int64_t count)
{
    int32_t most = in->packing.seq_len;
    if (!in->packing.is_padded) in->stream_tokens += count;
    for (int64_t done = 0; in->packing.is_padded && done < count; done += most) {
        int64_t left = count - done;
        if (left > 1) push_length(&in->lengths, (int32_t)(left < most ? left : most));
    }
}

/* Cuts a row into samples as loader_rows.c cuts documents. */
static void cut_row(Inspector *in, int64_t count)
{
    int32_t     most = in->packing.seq_len;
    LongSamples rule = in->packing.long_samples;
    in->summary->num_too_long += count > most;
    if (rule == LONG_SPLIT)
        for (int64_t done = 0; done < count; done += most)
            push_sample(in, done, count - done < most ? count - done : most, count - done > most);
    else if (count <= most || rule == LONG_TRUNCATE)
        push_sample(in, 0, count < most ? count : most, false);
}

static void pack(Inspector *in)
{
    int32_t seq_len = in->packing.seq_len;
    Packing packing;
    int64_t tokens = in->stream_tokens;
    for (int64_t i = 0; i < in->lengths.len; i++) tokens += in->lengths.data[i];
    in->summary->packed_rows = in->packing.is_padded ? in->lengths.len : (in->stream_tokens + seq_len - 1) / seq_len;
    if (!in->packing.is_padded) {
        pack_best_fit(in->lengths.data, in->lengths.len, seq_len, &packing);
        in->summary->packed_rows += packing.num_rows;
        packing_deinit(&packing);
    }
    if (in->summary->packed_rows) in->summary->packing_efficiency = (double)tokens / ((double)in->summary->packed_rows * seq_len);
}

static void add_lengths(Inspector *in)
{
    InspectSummary *summary = in->summary;
    int64_t         count = in->tokens;
    if (in->trained == 0) {
        summary->num_untrained++;
        return;
    }
    int bucket = count > 0 ? 63 - __builtin_clzll((unsigned long long)count) : 0;
    summary->histogram[bucket < INSPECT_BUCKETS ? bucket : INSPECT_BUCKETS - 1]++;
    summary->num_tokens += count;
    summary->num_trained += in->trained;
    if (summary->shortest == 0 || count < summary->shortest) summary->shortest = count;
    if (count > summary->longest) summary->longest = count;
    if (in->packing.seq_len == 0) return;
    if (in->format.type == DATASET_TEXT)
        cut_text(in, count);
    else
        cut_row(in, count);
}

static void add_row(Inspector *in, const Record *record)
{
    InspectSummary *summary = in->summary;
    summary->num_without_stop += in->encoder.turns_without_stop;
    summary->num_without_calls += in->encoder.turns_without_calls;
    summary->num_empty += in->encoder.turns_empty;
    if (in->encoder.messages_unprinted && summary->num_unprinted == 0)
        snprintf(summary->first_unprinted, sizeof summary->first_unprinted, record->file->is_rows ? "%.480s: row %lld" : "%.480s:%lld",
                 record->file->path, (long long)record->line);
    summary->num_unprinted += in->encoder.messages_unprinted;
    bool begins = in->part <= 1;
    in->tokens = (begins ? 0 : in->tokens) + (int64_t)in->encoder.ids.len;
    in->trained = (begins ? 0 : in->trained + (in->encoder.ids.len > 0)) + in->encoder.num_trained; /* a later part's first id is a label */
    if (!record->continues) add_lengths(in);
}

static Status inspect_record(Inspector *in, const Record *record, InspectRowFn each, void *context, bool *out_go_on)
{
    char message[STATUS_MESSAGE_BYTES];
    in->part = in->goes_on || record->continues ? in->part + 1 : 0;
    if (!in->goes_on) in->summary->num_rows++;
    in->goes_on = record->continues;
    InspectRow row = {.row = in->summary->num_rows - 1, .part = in->part, .path = record->file->path, .line = record->line};
    arena_reset(&in->arena);
    Status status = encode_record(in, record);
    if (status != OK) {
        if (!in->job->dataset->skip_bad_rows) return status;
        snprintf(message, sizeof message, "%s", status_message());
        row.error = message;
        in->summary->num_bad_rows++;
    } else {
        add_row(in, record);
        row.ids = in->encoder.ids.data;
        row.mask = in->encoder.mask;
        row.count = in->encoder.ids.len;
        row.num_trained = in->encoder.num_trained;
    }
    *out_go_on = !each || each(context, &row);
    return OK;
}

static Status inspect_all(Inspector *in, Reader *reader, int64_t max_rows, InspectRowFn each, void *context)
{
    bool go_on = true, has = true;
    while (go_on && (max_rows == 0 || in->summary->num_rows < max_rows || in->goes_on)) {
        Record record;
        TRY(reader_next(reader, &record, &has));
        if (!has) break;
        TRY(inspect_record(in, &record, each, context, &go_on));
    }
    FAIL_IF(in->summary->num_rows == 0, ERR_INVALID, "%s: the dataset is empty", in->job->dataset->path);
    snprintf(in->summary->format, sizeof in->summary->format, "%s", in->format.description);
    if (in->packing.seq_len > 0) pack(in);
    return OK;
}

Status inspect_dataset(const TokenizeJob *job, int64_t max_rows, InspectPacking packing, InspectRowFn each, void *context,
                       InspectSummary *out_summary)
{
    *out_summary = (InspectSummary){0};
    Inspector in = {.job = job, .summary = out_summary, .packing = packing};
    Arena     paths_arena = {0};
    StrBuf    notes = {0};
    char    **paths;
    int       count;
    Reader   *reader = NULL;
    int64_t   most = 0;
    Status    status = reader_find_files(&paths_arena, job->dataset->path, job->dataset->split, job->dataset->type == DATASET_TEXT, &notes,
                                         &paths, &count);
    snprintf(out_summary->file_notes, sizeof out_summary->file_notes, "%s", strbuf_cstr(&notes));
    strbuf_deinit(&notes);
    if (status == OK) status = mask_rules_create(job->tokenizer, job->tmpl, job->dataset->train_on, &in.rules);
    if (status == OK) status = dataset_reader_open(job->dataset, paths, count, &reader, &most);
    if (most > 0 && (max_rows == 0 || max_rows > most)) max_rows = most;
    if (status == OK) {
        mask_encoder_init(&in.encoder, in.rules);
        status = inspect_all(&in, reader, max_rows, each, context);
        mask_encoder_deinit(&in.encoder);
    }
    reader_close(reader);
    mask_rules_destroy(in.rules);
    free(in.lengths.data);
    arena_deinit(&in.arena);
    arena_deinit(&paths_arena);
    return status;
}
