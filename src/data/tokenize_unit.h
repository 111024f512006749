/* A unit of work: some records in, their tokens out. */
#pragma once

#include "data/columns.h"
#include "data/mask.h"
#include "data/record.h"
#include "data/tokenize.h"

enum { UNIT_BYTES = 1 << 20, UNIT_RECORDS = 4096 };

typedef struct UnitDocument {
    int64_t begin, end; /* indices in the unit's tokens */
    bool    continues;  /* the document goes on in the next unit */
} UnitDocument;

typedef struct Unit {
    /* in */
    StrBuf  bytes;   /* the bytes of all records, concatenated */
    Record *records; /* (num_records) Record.bytes is valid after unit_seal */
    size_t *offsets;
    int     num_records, capacity;
    bool    is_part, is_first_part; /* the only record is a part of a longer text */
    /* out */
    MaskDocuments tokens;
    NumberList    numbers;   /* numbers of all columns, token after token */
    UnitDocument *documents; /* (num_records) */
    int           num_documents;
    int64_t       num_rows, num_bad, num_untrained, num_without_stop, num_without_calls, num_empty, num_unprinted;
    int           num_examples;
    char          first_unprinted[512]; /* file and line of the first unprinted message */
    char          examples[5][512];
    FieldSet      unused;
    NumberList    given;  /* numbers of the rows being processed, as columns_read appends them */
    Status        status; /* not OK: the error of a row that stops tokenizing */
    char          message[STATUS_MESSAGE_BYTES];
    /* state, under the pipeline's lock */
    bool is_done;
} Unit;

typedef struct UnitContext {
    const DatasetOptions *dataset;
    const RowFormat      *format;
    const TemplateTraits *tmpl;
} UnitContext;

void unit_clear(Unit *unit);
void unit_deinit(Unit *unit);
void unit_add(Unit *unit, const Record *record); /* copies the bytes */
void unit_seal(Unit *unit);                      /* call it after the last record */
bool unit_is_full(const Unit *unit);

/* Parses, lays out and encodes all records; errors are stored in the unit. */
void unit_process(Unit *unit, const UnitContext *context, MaskEncoder *encoder, Arena *arena);
