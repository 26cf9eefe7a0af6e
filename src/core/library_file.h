/* A look through a library's file before it is loaded: the loader believes what stands in it, and a file that was cut
 * or changed ends the process. */
#ifndef TPI_LIBRARY_FILE_H
#define TPI_LIBRARY_FILE_H

/* What is wrong with the file's header, program headers and sections, in a few words; NULL: nothing, or it can't be
 * read, which the loader will say. Their contents are not looked at. */
const char *tpi_library_file_damage(const char *path);

#endif
