/* Records: the rows or documents in a dataset's files, one after the other, whatever the format. Reading only finds where a record
 * ends (one thread does it); parsing into JSON is record_parse, which many threads may do. */
#pragma once

#include "base/json.h"

typedef enum RecordKind {
    RECORD_TEXT, /* bytes are a document, or a part of it */
    RECORD_JSON, /* bytes are one JSON value */
    RECORD_CSV,  /* bytes are one CSV record */
} RecordKind;

/* Bytes of a part of a text: a longer file is read in parts that end at line ends, so that memory stays bounded. */
enum { TEXT_PART_BYTES = 16 << 20 };

typedef struct RecordFile {
    const char      *path;
    const JsonValue *header;    /* RECORD_CSV: array of the column names */
    char             delimiter; /* RECORD_CSV: the byte between fields */
    bool             is_rows;   /* positions count rows of the file, not lines */
} RecordFile;

typedef struct Record {
    RecordKind        kind;
    Str               bytes;     /* valid until the next reader_next */
    const RecordFile *file;      /* valid until reader_close */
    int64_t           line;      /* line of its first byte, from 1; the row if file->is_rows */
    int               column;    /* column of its first byte, in bytes from 1 */
    bool              continues; /* RECORD_TEXT: the document goes on in the next record */
} Record;

typedef struct Reader Reader;

/* Finds the data files of a dataset; the list is in the arena, sorted bytewise. path: a file, a glob, a folder, or a dataset of the hub. A
 * folder gives all files below it with known endings, except those about the dataset (README.md). With `split` (its name as split.h reads
 * it), a folder gives only files whose names start with the split; if there are none, files with the split as a word in their names, else
 * in their folders' names. If no name tells a split, the folder gives all files. ERR_NOT_FOUND: no file. ERR_INVALID: a file's ending is
 * unknown and `any_ending` is false. `notes` (NULL: none) gets a line for each choice among files that the path didn't name. */
NODISCARD Status reader_find_files(Arena *arena, const char *path, const char *split, bool any_ending, StrBuf *notes, char ***out_paths,
                                   int *out_count);

/* Reads the files in order. The ending says the format: .jsonl .ndjson .json .csv .tsv .parquet, each but .parquet also compressed, as .gz,
 * .zst, .xz or .bz2. All other files are text, which must be mostly UTF-8, without NUL bytes. The paths are borrowed. */
NODISCARD Status reader_open(char *const *paths, int count, Reader **out_reader);
/* Like reader_open, for a file in memory, borrowed until reader_close; the ending of `name` says the format. */
NODISCARD Status reader_open_bytes(const char *name, Str bytes, Reader **out_reader);
/* Call it before the first record: each message of a list in a .json file, or in a line, then becomes a record. Without this call a list of
 * messages ({role, content}, or ShareGPT's) is one record, a conversation. */
void             reader_split_talks(Reader *reader);
void             reader_close(Reader *reader); /* NULL is fine */
NODISCARD Status reader_next(Reader *reader, Record *out, bool *out_has);

/* Share of the work done, 0..1; all files count the same. */
double reader_fraction(const Reader *reader);

/* RECORD_TEXT becomes {"text": ...}, a CSV record an object of strings. Errors say file:line:column. */
NODISCARD Status record_parse(Arena *arena, const Record *record, JsonValue *out);

/* Parses one RFC 4180 record into an array of strings. ERR_INVALID says "column N: what", where N counts bytes. */
NODISCARD Status csv_parse(Arena *arena, Str bytes, char delimiter, JsonValue *out);
