/* Tokenizing a dataset: files to shards, on all threads, in bounded memory, with equal bytes whatever the threads.
 *
 * The result lies in cache_dir/<key>/, where key hashes all that the bytes depend on: the files' content, the tokenizer,
 * the template, the dataset's options, the format's version; key.json beside the shards says the same in clear. A shard is
 * complete or absent; progress.json says how many rows the complete ones hold, and a killed run goes on from there.
 * Shards carry checksums, compared before they are used unless verified.txt says that they were since they were last touched;
 * damaged ones are made anew from their rows.
 * dataset.json, written last, makes the folder whole. One process at a time works in a folder; others wait for it. */
#pragma once

#include "data/format.h"
#include "text/template/template.h"
#include "text/tokenizer.h"

enum { TOKENIZE_VERSION = 4 };

typedef struct TokenizeReport {
    char    dir[4096];        /* the dataset's folder */
    char    format[256];      /* what the files were taken for */
    char    file_notes[1024]; /* lines: which files of a folder were taken */
    bool    was_cached;       /* nothing had to be done */
    int64_t num_rows;         /* read, bad ones too */
    int64_t num_documents, num_tokens, num_trained;
    int64_t num_bad_rows;         /* skipped */
    int64_t num_untrained;        /* dropped: no trained token */
    int64_t num_without_stop;     /* trained turns that end without a stop token */
    int64_t num_without_calls;    /* trained turns whose tool calls the template doesn't print */
    int64_t num_empty;            /* trained turns without content and tool calls */
    int64_t num_unprinted;        /* messages whose content the template doesn't print */
    char    first_unprinted[512]; /* where the first of them is; "": none */
    int     num_examples;
    char    examples[5][512]; /* why the first bad rows were skipped */
} TokenizeReport;

/* Called on the caller's thread now and then. Returning false stops with ERR_INTERRUPTED; what is done is kept. */
typedef bool (*TokenizeProgress)(void *context, int64_t rows, int64_t tokens, double fraction_of_bytes);

typedef struct TokenizeJob {
    const DatasetOptions *dataset;
    const Tokenizer      *tokenizer;
    const Template       *tmpl; /* NULL: none */
    const char           *cache_dir;
    int                   num_threads;  /* 0: the cores this process may use */
    int64_t               shard_tokens; /* a shard ends at the first document that reaches it; 0: 2^24 */
    TokenizeProgress      progress;     /* may be NULL */
    void                 *context;
} TokenizeJob;

/* ERR_INVALID says file:line of a bad row (unless they are skipped), or that nothing is left to train. */
NODISCARD Status tokenize_dataset(const TokenizeJob *job, TokenizeReport *out_report);

/* The folder a job would use, and whether it is whole (NULL: not looked at); reads the files to hash them. */
NODISCARD Status tokenize_find(const TokenizeJob *job, char *out_dir, size_t dir_bytes, bool *out_is_whole);
