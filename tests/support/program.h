/* A program run as a user would run it: by the shell. */
#ifndef TPT_PROGRAM_H
#define TPT_PROGRAM_H

#define TPT_PRINTED_BYTES 262144

/* What the last run printed, both streams. */
extern char tpt_printed[TPT_PRINTED_BYTES];

/* Runs it and returns its exit status, -1 if it died or could not be run. */
int tpt_program_run(const char *program, const char *arguments);

/* Runs it; fails the test unless it ends with this status and prints both texts. */
void tpt_program_expect(const char *program, const char *arguments, int status, const char *first, const char *second);

/* Reads a file into tpt_printed, in place of what a run printed, and removes it. */
void tpt_printed_file(const char *path);

#endif
