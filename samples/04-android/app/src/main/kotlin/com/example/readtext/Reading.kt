package com.example.readtext

import java.io.IOException
import java.util.Locale

/** What a picture gave, and how long it took; [steadyMs] is missing until it was read again. */
data class Report(
    val lines: List<TextLine>,
    val picked: Picked,
    val loadMs: Double,
    val firstMs: Double,
    val steadyMs: Double?,
    val failure: String?,
)

/** Opens a reader on a device. */
typealias OpenReader = (Device) -> TextReader

private const val REPEATS = 9

/**
 * Reads one picture and times it: the loading, the first result, then the median of some more.
 *
 * Where no device was asked for and a GPU's driver fails, the CPU does it, and the report says so.
 *
 * @param show called after the first result and at the end
 * @param isWanted asked between results; where it is false the rest is left out
 */
class Reading(
    private val open: OpenReader,
    private val show: (Report) -> Unit,
    private val isWanted: () -> Boolean,
) {
    fun run(device: Device, pixels: IntArray, width: Int, height: Int) {
        if (device != Device.FIRST_THAT_FITS) return run(device, pixels, width, height, null)
        try {
            run(device, pixels, width, height, null)
        } catch (error: IOException) {
            run(Device.CPU, pixels, width, height, error.message)
        }
    }

    private fun run(device: Device, pixels: IntArray, width: Int, height: Int, failure: String?) {
        val started = System.nanoTime()
        open(device).use { reader ->
            val loaded = System.nanoTime()
            val lines = reader.read(pixels, width, height)
            val first = Report(
                lines,
                reader.picked,
                loadMs = milliseconds(started, loaded),
                firstMs = milliseconds(loaded, System.nanoTime()),
                steadyMs = null,
                failure,
            )
            show(first)
            val times = generateSequence { again(reader, pixels, width, height) }
                .takeWhile { isWanted() }
                .take(REPEATS)
                .sorted()
                .toList()
            if (times.isNotEmpty()) show(first.copy(steadyMs = times[times.size / 2]))
        }
    }

    private fun again(reader: TextReader, pixels: IntArray, width: Int, height: Int): Double {
        val started = System.nanoTime()
        reader.read(pixels, width, height)
        return milliseconds(started, System.nanoTime())
    }

    private fun milliseconds(from: Long, to: Long): Double = (to - from) / 1e6
}

/** A report as the app shows it. */
fun textOf(report: Report): String {
    val read = report.lines.map { if (it.isTurned) "${it.text}  (on its head)" else it.text }
    val picked = report.picked
    val facts = listOfNotNull(
        "runs on ${picked.device}: ${picked.target}, code ${picked.code}",
        picked.skipped.takeIf { it.isNotEmpty() }?.let { "not taken: $it" },
        report.failure?.let { "another device failed: $it" },
        named("loaded", report.loadMs),
        named("first result", report.firstMs),
        report.steadyMs?.let { named("each one more, median", it) },
    )
    return (read + "" + facts).joinToString("\n")
}

private fun named(what: String, value: Double): String =
    String.format(Locale.ROOT, "%s: %.1f ms", what, value)
