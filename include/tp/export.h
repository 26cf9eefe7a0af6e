/* Symbol visibility, C++ linkage and the version of these headers. */
#ifndef TP_EXPORT_H
#define TP_EXPORT_H

#if defined(__GNUC__)
#define TP_API __attribute__((visibility("default")))
#else
#define TP_API
#endif

#ifdef __cplusplus
#define TP_BEGIN_DECLS extern "C" {
#define TP_END_DECLS }
#else
#define TP_BEGIN_DECLS
#define TP_END_DECLS
#endif

#define TP_VERSION_MAJOR 0
#define TP_VERSION_MINOR 1
#define TP_VERSION_PATCH 0
#define TP_VERSION (TP_VERSION_MAJOR * 10000 + TP_VERSION_MINOR * 100 + TP_VERSION_PATCH)

TP_BEGIN_DECLS
/* TP_VERSION of the library that is linked; tp_ctx_create refuses another major.minor than the header's. */
TP_API int tp_version(void);
TP_END_DECLS
#endif
