/* Records: what a dataset's files hold, one after the other, whatever their format. Reading only finds where a record
 * ends (one thread does it); parsing into JSON is record_parse, which many threads may do. */
#pragma once

#include "base/json.h"

typedef enum RecordKind {
    RECORD_TEXT, /* bytes are a document, or a part of it */
    RECORD_JSON, /* bytes are one JSON value */
    RECORD_CSV,  /* bytes are one CSV record */
} RecordKind;

/* Bytes of a document a part holds: a longer file comes in parts that end at line ends, so that memory stays bounded. */
enum { TEXT_PART_BYTES = 16 << 20 };

typedef struct RecordFile {
    const char      *path;
    const JsonValue *header;    /* RECORD_CSV: array of the column names */
    char             delimiter; /* RECORD_CSV */
    bool             is_rows;   /* positions count rows of the file, not lines */
} RecordFile;

typedef struct Record {
    RecordKind        kind;
    Str               bytes;     /* valid until the next reader_next */
    const RecordFile *file;      /* valid until reader_close */
    int64_t           line;      /* 1-based: of its first byte; the row when file->is_rows */
    int               column;    /* 1-based, in bytes: of its first byte */
    bool              continues; /* RECORD_TEXT: the document goes on in the next record */
} Record;

typedef struct Reader Reader;

/* The data files that `path` means, sorted by their bytes, in the arena: a file; a glob; a folder, all files of known endings below it but
 * those about the dataset (README.md). With `split`, of a folder only the files of it: their names start with it, else have it as a word,
 * else their folders' names do; all, when none tells a split. ERR_NOT_FOUND when none, ERR_INVALID for a file of an ending we don't know,
 * unless `any_ending`. `notes` (NULL: none are kept) gets a line for each choice among files that the path didn't name. */
NODISCARD Status reader_find_files(Arena *arena, const char *path, const char *split, bool any_ending, StrBuf *notes, char ***out_paths,
                                   int *out_count);

/* Reads the files in order. Formats go by ending: .jsonl .ndjson .json .csv .tsv .parquet, each also with .gz or .zst
 * (parquet not); everything else is text, which must be UTF-8 for the most part and has no NUL. The paths are borrowed. */
NODISCARD Status reader_open(char *const *paths, int count, Reader **out_reader);
/* The same over bytes that stay valid; the ending of `name` says the format. */
NODISCARD Status reader_open_bytes(const char *name, Str bytes, Reader **out_reader);
void             reader_close(Reader *reader); /* NULL is fine */
NODISCARD Status reader_next(Reader *reader, Record *out, bool *out_has);

/* Share of the work done, 0..1, every file counting the same. */
double reader_fraction(const Reader *reader);

/* RECORD_TEXT becomes {"text": ...}, a CSV record an object of strings. Errors say file:line:column. */
NODISCARD Status record_parse(Arena *arena, const Record *record, JsonValue *out);

/* One RFC 4180 record into an array of strings. ERR_INVALID says "column N: what" in bytes. */
NODISCARD Status csv_parse(Arena *arena, Str bytes, char delimiter, JsonValue *out);
