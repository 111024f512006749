#include "data/tokenize_unit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void unit_clear(Unit *unit)
{
    strbuf_clear(&unit->bytes);
    unit->num_records = unit->num_documents = unit->num_examples = 0;
    unit->is_part = unit->is_first_part = unit->is_done = false;
    unit->tokens.ids.len = 0;
    unit->numbers.len = 0;
    unit->num_rows = unit->num_bad = unit->num_untrained = unit->num_without_stop = unit->num_without_calls = unit->num_empty = 0;
    unit->num_unprinted = 0;
    unit->unused = (FieldSet){0};
    unit->status = OK;
}

void unit_deinit(Unit *unit)
{
    strbuf_deinit(&unit->bytes);
    mask_documents_deinit(&unit->tokens);
    number_list_deinit(&unit->numbers);
    number_list_deinit(&unit->given);
    free(unit->records);
    free(unit->offsets);
    free(unit->documents);
}

void unit_add(Unit *unit, const Record *record)
{
    if (unit->num_records == unit->capacity) {
        unit->capacity = unit->capacity ? unit->capacity * 2 : 64;
        unit->records = realloc_or_end(unit->records, sizeof *unit->records * (size_t)unit->capacity);
        unit->offsets = realloc_or_end(unit->offsets, sizeof *unit->offsets * (size_t)unit->capacity);
        unit->documents = realloc_or_end(unit->documents, sizeof *unit->documents * (size_t)unit->capacity);
    }
    unit->offsets[unit->num_records] = unit->bytes.len;
    unit->records[unit->num_records++] = *record;
    strbuf_append(&unit->bytes, record->bytes.data, record->bytes.len);
}

void unit_seal(Unit *unit)
{
    for (int i = 0; i < unit->num_records; i++) unit->records[i].bytes.data = strbuf_cstr(&unit->bytes) + unit->offsets[i];
}

bool unit_is_full(const Unit *unit)
{
    return unit->bytes.len >= UNIT_BYTES || unit->num_records >= UNIT_RECORDS;
}

static void keep_document(Unit *unit, MaskEncoder *encoder, bool continues)
{
    int64_t begin = (int64_t)encoder->begin;
    mask_keep(encoder);
    unit->num_without_stop += encoder->turns_without_stop;
    unit->num_without_calls += encoder->turns_without_calls;
    unit->num_empty += encoder->turns_empty;
    unit->documents[unit->num_documents++] = (UnitDocument){begin, (int64_t)encoder->begin, continues};
}

/* A row that is laid out and not yet encoded (mask.h). */
typedef struct Row {
    const Record *record;
    bool          is_plain; /* encoded directly from the unit's bytes */
    size_t        layout;
    RowNumbers    numbers;
    Status        status;
    char         *message; /* heap; NULL: none */
} Row;

static Status parse_and_lay_out(Unit *unit, Row *out, const UnitContext *context, MaskEncoder *encoder, Arena *arena)
{
    const Record *record = out->record;
    RowFormat     format = *context->format;
    JsonValue     row;
    Sample        sample;
    format.unused = &unit->unused;
    format.nulls_are_left_out = record->file->is_rows;
    TRY(record_parse(arena, record, &row));
    Status status = format_row(arena, context->dataset, &format, &row, context->tmpl, &sample);
    if (status == OK) status = columns_read(arena, context->dataset, &format, &row, &unit->given, &out->numbers);
    if (status == OK && context->format->type == DATASET_TEXT)
        mask_lay_text_out(encoder, sample.text);
    else if (status == OK)
        status = mask_lay_out(encoder, arena, &sample);
    if (status == OK) return OK;
    return status_prefix(status, record->file->is_rows ? "%s: row %lld" : "%s:%lld", record->file->path, (long long)record->line);
}

static void lay_out(Unit *unit, Row *row, const UnitContext *context, MaskEncoder *encoder, Arena *arena)
{
    bool has_columns = context->dataset->num_inputs > 0;
    row->is_plain = row->record->kind == RECORD_TEXT && context->format->type == DATASET_TEXT && !has_columns;
    row->layout = encoder->num_layouts;
    if (row->is_plain) return;
    arena_reset(arena);
    row->status = parse_and_lay_out(unit, row, context, encoder, arena);
    if (row->status == OK) return;
    row->message = strdup(status_message());
    if (!row->message) fatal_out_of_memory(STATUS_MESSAGE_BYTES);
}

static Status encode_row(Unit *unit, const Row *row, const UnitContext *context, MaskEncoder *encoder)
{
    const Record *record = row->record;
    if (row->status != OK) FAIL(row->status, "%s", row->message);
    if (row->is_plain) {
        bool is_first = !unit->is_part || unit->is_first_part;
        TRY(mask_encode_text(encoder, record->bytes, is_first, !record->continues));
        keep_document(unit, encoder, record->continues);
        return OK;
    }
    Status status = mask_encode_waiting(encoder, row->layout);
    bool   is_kept = status == OK && encoder->num_trained > 0;
    if (is_kept)
        status = columns_place(context->dataset, context->format, &unit->given, &row->numbers, (int64_t)encoder->ids.len, &unit->numbers);
    if (status != OK)
        return status_prefix(status, record->file->is_rows ? "%s: row %lld" : "%s:%lld", record->file->path, (long long)record->line);
    if (encoder->messages_unprinted && unit->num_unprinted == 0)
        snprintf(unit->first_unprinted, sizeof unit->first_unprinted, record->file->is_rows ? "%.480s: row %lld" : "%.480s:%lld",
                 record->file->path, (long long)record->line);
    unit->num_unprinted += encoder->messages_unprinted;
    if (!is_kept)
        unit->num_untrained++;
    else
        keep_document(unit, encoder, false);
    return OK;
}

static void count_row(Unit *unit, const UnitContext *context, Status status)
{
    unit->num_rows++;
    if (status == OK) return;
    bool is_bad = status == ERR_INVALID || status == ERR_UNSUPPORTED;
    if (!context->dataset->skip_bad_rows || !is_bad) {
        unit->status = status;
        snprintf(unit->message, sizeof unit->message, "%s%s", status_message(), is_bad ? "; on_bad_row: skip leaves such rows out" : "");
        return;
    }
    if (unit->num_examples < 5) snprintf(unit->examples[unit->num_examples++], 512, "%.511s", status_message());
    unit->num_bad++;
}

/* Swaps buffers, so that the encoder writes into the unit's buffers. */
static void swap_tokens(Unit *unit, MaskEncoder *encoder)
{
    MaskDocuments tokens = unit->tokens;
    unit->tokens = encoder->documents;
    encoder->documents = tokens;
    encoder->begin = 0;
}

void unit_process(Unit *unit, const UnitContext *context, MaskEncoder *encoder, Arena *arena)
{
    enum { BATCH_ROWS = 256, BATCH_BYTES = 1 << 16 }; /* few enough that laid out texts stay in a core's cache */
    swap_tokens(unit, encoder);
    for (int done = 0; done < unit->num_records && unit->status == OK;) {
        Row rows[BATCH_ROWS] = {0};
        int count = 0;
        mask_clear(encoder);
        unit->given.len = 0;
        while (done < unit->num_records && count < BATCH_ROWS && encoder->laid_out.len < BATCH_BYTES) {
            rows[count].record = &unit->records[done++];
            lay_out(unit, &rows[count++], context, encoder, arena);
        }
        for (int i = 0; i < count; i++) {
            if (unit->status == OK) count_row(unit, context, encode_row(unit, &rows[i], context, encoder));
            free(rows[i].message);
        }
    }
    swap_tokens(unit, encoder);
}
