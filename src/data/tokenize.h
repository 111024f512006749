/* Tokenizing a dataset: files to shards, on all threads, in bounded memory. The bytes don't depend on the number of threads.
 *
 * The result is in cache_dir/<key>/, where key hashes all that the bytes depend on: the files' content, the tokenizer, the template, the
 * dataset's options, the format's version; key.json beside the shards has all that as text. A shard is complete or absent; progress.json
 * says how many rows the complete shards hold, and after a kill the next start goes on from there. Shards have checksums. They are compared
 * before use, unless verified.txt says that this was done since the shards last changed; damaged shards are made anew from their rows.
 * dataset.json, written last, makes the folder whole. One process at a time works in a folder; others wait for it. */
#pragma once

#include "data/format.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

enum { TOKENIZE_VERSION = 5 };

typedef struct TokenizeReport {
    char     dir[4096];        /* the dataset's folder */
    char     format[256];      /* the layout detected in the files */
    char     file_notes[1024]; /* lines of text: which files of a folder were taken */
    bool     was_cached;       /* the dataset was whole already: nothing had to be done */
    int64_t  num_rows;         /* rows read, bad ones too */
    int64_t  num_documents, num_tokens, num_trained;
    int64_t  num_bad_rows;         /* skipped rows */
    int64_t  num_untrained;        /* rows dropped: no trained token */
    int64_t  num_without_stop;     /* trained turns that end without a stop token */
    int64_t  num_without_calls;    /* trained turns whose tool calls the template doesn't print */
    int64_t  num_empty;            /* trained turns without content and tool calls */
    int64_t  num_unprinted;        /* messages whose content the template doesn't print */
    char     first_unprinted[512]; /* file and line of the first such message; "": none */
    int      num_examples;
    char     examples[5][512]; /* why the first bad rows were skipped */
    FieldSet unused;           /* fields of rows that aren't used */
} TokenizeReport;

/* Called on the caller's thread now and then. Returning false stops with ERR_INTERRUPTED; finished shards are kept. */
typedef bool (*TokenizeProgress)(void *context, int64_t rows, int64_t tokens, double fraction_of_bytes);

typedef struct TokenizeJob {
    const DatasetOptions *dataset;
    const Tokenizer      *tokenizer;
    const Template       *tmpl; /* NULL: none */
    const char           *cache_dir;
    int                   num_threads;  /* 0: the cores this process may use */
    int64_t               shard_tokens; /* a shard ends with the unit (tokenize_unit.h) that reaches this many tokens; 0: 2^24 */
    TokenizeProgress      progress;     /* may be NULL */
    void                 *context;
} TokenizeJob;

/* ERR_INVALID says file:line of a bad row (unless skip_bad_rows), or that nothing is left to train. */
NODISCARD Status tokenize_dataset(const TokenizeJob *job, TokenizeReport *out_report);

/* The folder a job would use, and whether its dataset is whole (out_is_whole NULL: isn't checked). Reads the files to hash them. */
NODISCARD Status tokenize_find(const TokenizeJob *job, char *out_dir, size_t dir_bytes, bool *out_is_whole);
