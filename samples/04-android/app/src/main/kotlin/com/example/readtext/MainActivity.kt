package com.example.readtext

import android.app.Activity
import android.graphics.Bitmap
import android.os.Bundle
import android.view.View
import android.widget.AdapterView
import android.widget.ImageView
import android.widget.Spinner
import android.widget.TextView
import java.util.concurrent.Executors
import java.util.concurrent.atomic.AtomicInteger

private const val MODULE = "read_text.aotm"
private const val CHARACTERS = "characters.txt"
private const val MOST_THREADS = 4 // as many fast cores as most phones have
private val LINES = listOf("COMPILED ONCE", "READ 3 TIMES", "FROM ONE FILE")

/** Draws a page, reads it on the chosen device, shows what was read and how long it took. */
class MainActivity : Activity() {
    // All that takes time is done here, one after the other; models live no longer than their turn.
    private val worker = Executors.newSingleThreadExecutor()
    private val asked = AtomicInteger() // readings so far: only the last one is wanted
    private val page: Bitmap by lazy { drawPage(LINES, turned = 1) }

    override fun onCreate(savedInstanceState: Bundle?) {
        super.onCreate(savedInstanceState)
        setContentView(R.layout.main)
        findViewById<ImageView>(R.id.page).setImageBitmap(page)
        // A spinner tells its first choice too, so that a page is read at once.
        findViewById<Spinner>(R.id.device).onItemSelectedListener = Chosen()
    }

    override fun onDestroy() {
        asked.incrementAndGet()
        worker.shutdown()
        super.onDestroy()
    }

    private inner class Chosen : AdapterView.OnItemSelectedListener {
        override fun onItemSelected(parent: AdapterView<*>?, view: View?, position: Int, id: Long) {
            findViewById<TextView>(R.id.report).setText(R.string.reading)
            read(Device.entries[position])
        }

        override fun onNothingSelected(parent: AdapterView<*>?) = Unit
    }

    private fun read(device: Device) {
        val own = asked.incrementAndGet()
        val pixels = pixelsOf(page)
        val width = page.width
        val height = page.height
        val isWanted = { asked.get() == own }
        worker.execute {
            try {
                val reading = Reading(::openReader, { show(it, isWanted) }, isWanted)
                reading.run(device, pixels, width, height)
            } catch (error: Exception) {
                showText(error.message ?: error.toString(), isWanted)
            } catch (error: OutOfMemoryError) {
                showText(error.message ?: error.toString(), isWanted)
            }
        }
    }

    /** The module where it lies in the app's own file: nothing is unpacked. */
    private fun openReader(device: Device): TextReader {
        val characters = assets.open(CHARACTERS).use { it.readBytes() }
        val threads = Runtime.getRuntime().availableProcessors().coerceAtMost(MOST_THREADS)
        return assets.openFd(MODULE).use { asset ->
            val fd = asset.parcelFileDescriptor.fd
            val cache = codeCacheDir.path // emptied with each update of the app
            TextReader(fd, asset.startOffset, asset.length, characters, device, threads, cache)
        }
    }

    private fun show(report: Report, isWanted: () -> Boolean) = runOnUiThread {
        if (isWanted()) {
            findViewById<ImageView>(R.id.page).setImageBitmap(withFrames(page, report.lines))
            findViewById<TextView>(R.id.report).text = textOf(report)
        }
    }

    private fun showText(text: String, isWanted: () -> Boolean) = runOnUiThread {
        if (isWanted()) findViewById<TextView>(R.id.report).text = text
    }
}
