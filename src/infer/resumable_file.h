/* A file of lines that grows over several starts of a command. Lines are appended to PATH.part, which becomes PATH when all are there.
 * PATH.settings.json says what they were made with, a JSON object: lines of other settings are never added. */
#pragma once

#include "files/file.h"

typedef struct ResumableFile {
    const char *path, *part, *settings_path;
    int         fd; /* of the part, which is locked; -1: PATH is complete */
} ResumableFile;

/* Opens what was begun with these settings, or begins. ERR_INVALID names the settings that differ, and says what to do. While another
 * process writes there, waits. PATH that is complete with the same settings: file->fd is -1. Folders
 * above PATH are made. Paths live in the arena. */
NODISCARD Status resumable_file_open(Arena *arena, const char *path, Str settings, ResumableFile *out);
void             resumable_file_close(ResumableFile *file);

/* Keeps so many bytes from the beginning; what is appended comes after them. */
NODISCARD Status resumable_file_cut(ResumableFile *file, size_t size);
NODISCARD Status resumable_file_append(ResumableFile *file, const StrBuf *lines);
/* All lines are there: gives the file its name. */
NODISCARD Status resumable_file_finish(ResumableFile *file);
