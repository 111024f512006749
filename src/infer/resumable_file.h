/* A file of lines that is written over several runs of a command. Lines are appended to PATH.part, which is renamed to PATH when all are
 * there. PATH.settings.json is a JSON object of the settings that the lines depend on: lines with other settings are never added. */
#pragma once

#include "files/file.h"

typedef struct ResumableFile {
    const char *path, *part, *settings_path;
    int         fd; /* the open .part file, which is locked; -1: PATH is complete */
} ResumableFile;

/* Opens the file that was begun with these settings, or begins one; waits while another process writes it. ERR_INVALID names the settings
 * that differ, and says what to do. If PATH is complete with the same settings, out->fd is -1. Folders above PATH are created. The paths
 * are in the arena. */
NODISCARD Status resumable_file_open(Arena *arena, const char *path, Str settings, ResumableFile *out);
void             resumable_file_close(ResumableFile *file);

/* Keeps only the first `size` bytes; lines are then appended after them. */
NODISCARD Status resumable_file_cut(ResumableFile *file, size_t size);
NODISCARD Status resumable_file_append(ResumableFile *file, const StrBuf *lines);
/* All lines are written: renames the file to PATH. */
NODISCARD Status resumable_file_finish(ResumableFile *file);
