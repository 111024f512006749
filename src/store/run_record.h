/* OUTPUT/run.json: the settings of the run in a folder, and whether it has finished. A start reads it to decide whether to resume, to start
 * anew or to refuse. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"

typedef struct RunRecord {
    StrBuf   settings;  /* the lines of the resolved run file that decide the result */
    uint64_t hash;      /* hash of `settings` and of the model's config.json */
    uint64_t said_hash; /* like `hash`, without lines whose key has its default, so that a new key doesn't change it */
    /* Hashes of everything else that decides the result; 0: not known, or nothing to hash. */
    uint64_t base;       /* hash of the files of the base model's weights */
    uint64_t base_stamp; /* file_stamp of these files: while it is unchanged, so is `base` */
    uint64_t objective;  /* hash of the objective that the run names, and of the config.json of each model that it reads */
    uint64_t tokenizer;  /* hash of tokenizer.json */
    uint64_t adapter;    /* hash of the files of the adapter that the run starts from */
    uint64_t data;       /* hash of each dataset's keys: files, template, options */
    int64_t  began;      /* the time that chat templates print, in seconds; 0: not known */
    StrBuf   folder;     /* folder that relative paths of the settings start from; empty: not known, as in older records */
    Str      model;      /* the model's config.json, borrowed from the model; only in records of run_record_make */
    int64_t  batch;      /* rows of a step, for checkpoints that don't say how many rows were read; 0: not known */
} RunRecord;

/* Makes the record of this run. Keys that change no weight (threads, logging, saving, evaluation) are left out. So is the number of ranks:
 * gradient_accumulation_steps is multiplied by `world`, which gives the same result on one rank. began: RunRecord.began, the same on all
 * ranks. */
void run_record_make(const Config *config, const HfModel *model, int world, int64_t began, RunRecord *out);
void run_record_deinit(RunRecord *record);

/* Appends the lines of a run file that all its ranks must share: all except a rank's place and its host's own settings. */
void run_record_shared(const Config *config, StrBuf *out);
/* Appends the first line in which the settings `before` and `now` differ, for a message. */
void run_record_difference(const char *before, const char *now, StrBuf *out);

/* Sets out->base: copied from `before` if the files haven't been touched since, else computed by reading all of them on `threads` threads
 * (0: one per core). A value that isn't finite is an error, so it is found before the data is tokenized. */
NODISCARD Status run_record_base(HfModel *model, const RunRecord *before, int threads, RunRecord *out);

/* Sets out->adapter from the files of the adapter in `dir`. */
NODISCARD Status run_record_adapter(const char *dir, RunRecord *out);

typedef enum RunPresence { RUN_ABSENT, RUN_UNFINISHED, RUN_FINISHED } RunPresence;

/* Reads the record of output_dir; *before is empty if there is none. */
NODISCARD Status run_record_read(const char *output_dir, RunPresence *out, RunRecord *before);

/* Whether the two records have the same settings; a key that `before` lacks counts as its default. If not, appends the first difference to
 * `difference`. */
bool run_record_same_settings(const RunRecord *before, const RunRecord *now, StrBuf *difference);

/* Whether a checkpoint with this settings_hash has the record's settings. */
bool run_record_has_hash(const RunRecord *record, uint64_t hash);

/* Which of base, adapter, objective, tokenizer and data has changed, in words for a message; NULL: none. A hash that one record doesn't
 * know counts as unchanged. */
const char *run_record_changed_input(const RunRecord *before, const RunRecord *now);

NODISCARD Status run_record_write(const char *output_dir, const RunRecord *record, bool finished);
