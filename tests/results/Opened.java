import ij.ImagePlus;
import ij.io.Opener;
import ij.measure.Calibration;
import ij.plugin.FolderOpener;
import java.io.File;

/** Opens files and folders with ImageJ, and prints what it makes of each. */
public class Opened {
  public static void main(String[] paths) {
    for (String path : paths) {
      boolean isFolder = new File(path).isDirectory();
      ImagePlus image = isFolder ? FolderOpener.open(path) : new Opener().openImage(path);
      Calibration size = image.getCalibration();
      image.setSlice(3);
      System.out.printf(
          "%d %d %d %s %s %s %s %s%n",
          image.getWidth(), image.getHeight(), image.getNSlices(),
          size.pixelWidth, size.pixelHeight, isFolder ? "-" : size.pixelDepth,
          size.getUnit().replace("\u00b5", "u"), image.getProcessor().getPixelValue(4, 9));
    }
  }
}
