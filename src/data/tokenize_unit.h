/* A unit of work: some records in, their tokens out. */
#pragma once

#include "data/columns.h"
#include "data/mask.h"
#include "data/record.h"
#include "data/tokenize.h"

enum { UNIT_BYTES = 1 << 20, UNIT_RECORDS = 4096 };

typedef struct UnitDocument {
    int64_t begin, end; /* in the unit's tokens */
    bool    continues;  /* the document goes on in the next unit */
} UnitDocument;

typedef struct Unit {
    /* in */
    StrBuf  bytes;   /* of all records */
    Record *records; /* (num_records); bytes are offsets until the unit is full */
    size_t *offsets;
    int     num_records, capacity;
    bool    is_part, is_first_part; /* the only record is a part of a longer text */
    /* out */
    MaskDocuments tokens;
    NumberList    numbers;   /* of columns: of each token all, one after the other */
    UnitDocument *documents; /* (num_records) */
    int           num_documents;
    int64_t       num_rows, num_bad, num_untrained, num_without_stop, num_without_calls, num_empty, num_unprinted;
    int           num_examples;
    char          first_unprinted[512]; /* where it is */
    char          examples[5][512];
    FieldSet      unused;
    NumberList    given;  /* of columns, of the rows that are being made */
    Status        status; /* of a row that stops everything */
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
void unit_seal(Unit *unit);                      /* after the last record */
bool unit_is_full(const Unit *unit);

/* Parses, lays out and encodes all records; what goes wrong is kept in the unit. */
void unit_process(Unit *unit, const UnitContext *context, MaskEncoder *encoder, Arena *arena);
