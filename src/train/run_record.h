/* OUTPUT/run.json: which settings the run in a folder has, and whether it is finished. What decides between going on, starting
 * anew and refusing. */
#pragma once

#include "config/config.h"
#include "model/hf_model.h"

typedef struct RunRecord {
    StrBuf   settings; /* the lines of the resolved run file that decide the result */
    uint64_t hash;     /* of them and of the model's config.json */
} RunRecord;

/* The settings of this run. Keys that change no weight (threads, logging, saving, evaluation) are left out. */
void run_record_make(const Config *config, const HfModel *model, RunRecord *out);
void run_record_deinit(RunRecord *record);

typedef enum RunPresence { RUN_ABSENT, RUN_UNFINISHED, RUN_FINISHED } RunPresence;

/* What output_dir holds. *out_same: with these settings; else *difference says the first setting that differs. */
NODISCARD Status run_record_look(const char *output_dir, const RunRecord *record, RunPresence *out, bool *out_same, StrBuf *difference);

NODISCARD Status run_record_write(const char *output_dir, const RunRecord *record, bool finished);
