#include "data/text_file.h"

#include "base/log.h"
#include "base/str.h"
#include "data/record_internal.h"
#include "data/stream.h"
#include "data/unpack.h"

#include <string.h>
#include <sys/stat.h>

static Status unpack(const char *path, StrBuf *out)
{
    Stream stream = {0};
    TRY(stream_open(path, &stream));
    Status status = OK;
    while (status == OK) {
        strbuf_append(out, stream.data + stream.begin, stream.end - stream.begin);
        stream.begin = stream.end;
        if (stream.at_end) break;
        status = stream_more(&stream);
    }
    stream_close(&stream);
    return status;
}

static Status check_text(const char *path, Str text)
{
    FAIL_IF(str_starts(text, str_of("PAR1")), ERR_INVALID, "%s: a parquet file, expected text; write its texts to a .txt file", path);
    const char *nul = text.len ? memchr(text.data, 0, text.len) : NULL;
    FAIL_IF(nul, ERR_INVALID, "%s: a NUL byte at offset %zu: this is no text, or one in UTF-16; expected UTF-8", path,
            (size_t)(nul - text.data));
    return OK;
}

/* Warns if the file has the ending of data rows, such as .jsonl: it can be read as text, but that is seldom meant. */
static void warn_of_rows(const char *path)
{
    bool       is_known;
    FileFormat format = file_format(path, &is_known);
    if (is_known && format != FILE_TEXT)
        log_warn("%s is read as plain text, with its field names and quotes; write its texts to a .txt file to leave them out", path);
}

/* Is it a file that can't be mapped, such as standard input or a pipe? */
static Status is_stream(const char *path, bool *out)
{
    struct stat info;
    *out = false;
    if (stat(path, &info) != 0) return file_fail("open", path);
    *out = S_ISFIFO(info.st_mode) || S_ISCHR(info.st_mode) || S_ISSOCK(info.st_mode);
    return OK;
}

Status text_file_open_rows(const char *path, TextFile *out)
{
    *out = (TextFile){0};
    bool   unpacked;
    Status status = OK;
    TRY(is_stream(path, &unpacked));
    if (!unpacked) {
        TRY(file_map(path, &out->map));
        out->text = (Str){out->map.data, out->map.size};
        unpacked = coding_of(out->text) != CODING_PLAIN;
    }
    if (unpacked) {
        status = unpack(path, &out->unpacked);
        out->text = strbuf_str(&out->unpacked);
    }
    if (str_starts(out->text, str_of("\xef\xbb\xbf"))) out->text = str_slice(out->text, 3, out->text.len);
    if (status == OK) status = check_text(path, out->text);
    if (status != OK) text_file_close(out);
    return status;
}

Status text_file_open(const char *path, TextFile *out)
{
    TRY(text_file_open_rows(path, out));
    warn_of_rows(path);
    return OK;
}

void text_file_close(TextFile *file)
{
    file_unmap(&file->map);
    strbuf_deinit(&file->unpacked);
    *file = (TextFile){0};
}
