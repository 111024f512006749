/* OUTPUT/run.json: which settings the run in a folder has, and whether it is finished. It decides whether a start goes on, starts anew or
 * is refused. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"

typedef struct RunRecord {
    StrBuf   settings;  /* the lines of the resolved run file that decide the result */
    uint64_t hash;      /* of them and of the model's config.json */
    uint64_t said_hash; /* the same without lines that have their default: a key more changes nothing of it */
    /* Hashes of all else that decides the result; 0: not known, or there is none. */
    uint64_t base;       /* of the files of the base model's weights */
    uint64_t base_stamp; /* their file_stamp: while it stays, so does `base` */
    uint64_t objective;  /* of the one that the run names, and of the config.json of models that it reads */
    uint64_t tokenizer;  /* of tokenizer.json */
    uint64_t adapter;    /* of the files of the adapter that the run goes on from */
    uint64_t data;       /* of the datasets' keys: files, template, options of each */
    int64_t  began;      /* the time that chat templates print, in seconds; 0: not known */
    StrBuf   folder;     /* that paths of the settings start from; empty: not known, as in older records */
    Str      model;      /* the model's config.json; of this run alone, and the model's */
    int64_t  batch;      /* rows of a step, for checkpoints beside it that don't tell their rows; 0: not known */
} RunRecord;

/* The settings of this run. Keys that change no weight (threads, logging, saving, evaluation) are left out, and so are ranks: `world` of
 * them do what one does with as many times gradient_accumulation_steps. began: the same for all ranks. */
void run_record_make(const Config *config, const HfModel *model, int world, int64_t began, RunRecord *out);
void run_record_deinit(RunRecord *record);

/* The lines of a run file that its ranks must have in common: all but a rank's place and its host's own settings. */
void run_record_shared(const Config *config, StrBuf *out);
/* The first line that differs, for a message. */
void run_record_difference(const char *before, const char *now, StrBuf *out);

/* Fills in `base`: from `before` where the files weren't touched since, else by reading them all on `threads` threads (0: all). Values that
 * aren't finite are then an error, before the data is tokenized. */
NODISCARD Status run_record_base(HfModel *model, const RunRecord *before, int threads, RunRecord *out);

/* Fills in `adapter`. */
NODISCARD Status run_record_adapter(const char *dir, RunRecord *out);

typedef enum RunPresence { RUN_ABSENT, RUN_UNFINISHED, RUN_FINISHED } RunPresence;

/* Reads the record of output_dir; *before is empty where there is none. */
NODISCARD Status run_record_read(const char *output_dir, RunPresence *out, RunRecord *before);

/* Whether both have the same settings, a key that `before` doesn't know as it is by default; else *difference says the first setting that
 * differs. */
bool run_record_same_settings(const RunRecord *before, const RunRecord *now, StrBuf *difference);

/* Whether a checkpoint's settings_hash is of these settings. */
bool run_record_has_hash(const RunRecord *record, uint64_t hash);

/* Which of base, adapter, objective, tokenizer and data was changed, where both are known, for a message; NULL: none. */
const char *run_record_changed_input(const RunRecord *before, const RunRecord *now);

NODISCARD Status run_record_write(const char *output_dir, const RunRecord *record, bool finished);
