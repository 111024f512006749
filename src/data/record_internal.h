/* Shared by the files of the record readers. */
#pragma once

#include "data/record.h"

typedef enum FileFormat { FILE_TEXT, FILE_JSONL, FILE_JSON, FILE_CSV, FILE_TSV, FILE_PARQUET } FileFormat;

/* By the ending; *out_is_known false: none that we know, which means text. */
FileFormat file_format(const char *path, bool *out_is_known);
