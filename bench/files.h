/* Plain files, with which the broker's files are compared. */
#ifndef BENCH_FILES_H
#define BENCH_FILES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes a folder for a broker's files: in `parent`, or in the folder of the run. False: an error was printed. */
bool files_folder(const char *parent, char *out, size_t size);
/* Removes the folder with the plain files in it. */
void files_remove(const char *folder);
/* Bytes of all files in the folder. */
uint64_t files_bytes(const char *folder);
/* Seconds to write a file of this many bytes of random data in blocks of 1 MiB, with fsync; the file is removed.
 * Negative: failed. */
double files_write(const char *folder, uint64_t bytes);
/* Seconds to read all files of the folder in blocks of 1 MiB. */
double files_read(const char *folder);
/* Asks the kernel to drop the cached pages, so that the next reader waits for the disk. */
void files_forget(const char *folder);

#endif
